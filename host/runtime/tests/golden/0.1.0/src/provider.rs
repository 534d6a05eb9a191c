//! Sends the newest prompt as it is, and reads the answer's bytes as its text.

wit_bindgen::generate!({ path: "wit/0.1.0", world: "provider" });

use std::cell::RefCell;

use exports::mainstay::plugin::models::{
    Decoder, EncodeError, Exchange, Failure, FinishReason, Guest, GuestDecoder, HttpExchange,
    ModelEvent, ModelRequest, ProviderManifest, Request, Response,
};
use mainstay::plugin::http::{Chunk, Header, HeaderValue};
use mainstay::plugin::manifest::{HostPattern, HttpRule, Plugin, Scheme};
use mainstay::plugin::types::{FailureClass, Message, Part};

struct Golden;

struct Reader(RefCell<u32>);

impl Guest for Golden {
    type Decoder = Reader;

    fn describe() -> ProviderManifest {
        ProviderManifest {
            plugin: Plugin {
                name: "golden-provider".to_owned(),
                version: "0.1.0".to_owned(),
                summary: "Built for the first version of the contract".to_owned(),
                options_schema: None,
            },
            http: vec![HttpRule {
                scheme: Scheme::Https,
                host: HostPattern::BaseUrl,
                port: None,
                methods: vec!["POST".to_owned()],
                path_prefix: "/".to_owned(),
            }],
            secrets: vec![],
            models: vec![],
            hosted_tools: vec![],
        }
    }

    fn encode(call: ModelRequest) -> Result<Exchange, EncodeError> {
        let Some(base) = call.config.base_url else {
            return Err(EncodeError::Config("there is no base URL".to_owned()));
        };
        let text = call
            .messages
            .into_iter()
            .rev()
            .find_map(|message| match message {
                Message::User(parts) => parts.into_iter().find_map(|part| match part {
                    Part::Text(text) => Some(text),
                    Part::Media(_) => None,
                }),
                _ => None,
            });
        Ok(Exchange::Http(HttpExchange {
            request: Request {
                method: "POST".to_owned(),
                url: base + "/golden",
                headers: vec![Header {
                    name: "content-type".to_owned(),
                    value: HeaderValue::Text("text/plain".to_owned()),
                }],
                body: vec![Chunk::Bytes(text.unwrap_or_default().into_bytes())],
            },
            memo: vec![7],
        }))
    }

    fn classify(answer: Response) -> Failure {
        Failure {
            class: FailureClass::Server,
            message: String::from_utf8_lossy(&answer.body).into_owned(),
            retry_after_ms: None,
        }
    }
}

impl GuestDecoder for Reader {
    fn new(_: Response, memo: Vec<u8>) -> Self {
        Self(RefCell::new(u32::from(memo.first().copied().unwrap_or(0))))
    }

    fn feed(&self, bytes: Vec<u8>) -> Vec<ModelEvent> {
        *self.0.borrow_mut() += 1;
        vec![ModelEvent::TextDelta(
            String::from_utf8_lossy(&bytes).into_owned(),
        )]
    }

    fn finish(&self) -> Vec<ModelEvent> {
        let mut end = vec![ModelEvent::TextDelta(format_number(*self.0.borrow()))];
        end.push(ModelEvent::Finished(FinishReason::Stop));
        end
    }
}

fn format_number(number: u32) -> String {
    let digit = |n: u32| char::from(b'0' + (n % 10) as u8);
    [digit(number / 10), digit(number)].into_iter().collect()
}

#[allow(unused)]
type Unused = Decoder;

export!(Golden);
