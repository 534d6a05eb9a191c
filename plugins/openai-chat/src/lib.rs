//! The provider `openai-chat`: the chat-completions protocol, as OpenAI began it and as vLLM,
//! llama.cpp, Ollama, LiteLLM, OpenRouter and many others speak it.
//!
//! The protocol is loose at its edges, and servers differ there. What is known to vary is read
//! leniently; the modules `decoder` and `failure` list it.
//!
//! - The request goes to `{base-url}/chat/completions`; the base URL is OpenAI's unless the operator
//!   sets another.
//! - The secret `api-key` is sent as a bearer token if it is bound, so a server without keys needs no
//!   configuration.
//! - Reasoning is shown where the server sends it, and handed back only if `send_reasoning` names a
//!   field: most servers refuse or ignore it.

use mainstay_guest::http::Response;
use mainstay_guest::manifest::{self, HostPattern, SecretRule};
use mainstay_guest::provider::{Exchange, ModelRequest, ProviderManifest};
use mainstay_guest::types::Failure;
use mainstay_guest::{Error, Provider};

mod decoder;
mod failure;
mod request;
mod sse;

struct OpenAiChat;

mainstay_guest::provider!(OpenAiChat);

/// Name of the secret.
const API_KEY: &str = "api-key";

/// Where requests go unless the operator says otherwise.
const BASE_URL: &str = "https://api.openai.com/v1";

/// What an operator may set.
const OPTIONS_SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "max_tokens_field": {
      "enum": ["max_tokens", "max_completion_tokens"],
      "description": "Which field limits the answer. Without it: max_completion_tokens for OpenAI itself, max_tokens for all others."
    },
    "system_role": {
      "enum": ["system", "developer"],
      "description": "Role of system messages; system without it."
    },
    "stream": { "type": "boolean", "description": "Whether answers are streamed; true without it." },
    "include_usage": {
      "type": "boolean",
      "description": "Whether a stream is asked for its token counts; true without it."
    },
    "send_reasoning": {
      "enum": ["reasoning_content", "reasoning"],
      "description": "Field in which earlier reasoning is handed back. Without it, it is not."
    },
    "parallel_tool_calls": { "type": "boolean" },
    "headers": { "type": "object", "additionalProperties": { "type": "string" } },
    "extra": { "type": "object", "description": "Further fields of the request's body." }
  },
  "additionalProperties": false
}"#;

impl Provider for OpenAiChat {
    type Decoder = decoder::Decoder;

    fn manifest() -> ProviderManifest {
        let mut manifest = manifest::provider(
            "openai-chat",
            env!("CARGO_PKG_VERSION"),
            "Chat completions of OpenAI and of servers that speak its protocol",
        )
        .options_schema(OPTIONS_SCHEMA);
        manifest.http = vec![
            manifest::http_base_url(),
            // For the base URL that is used where none is configured.
            manifest::HttpRule {
                host: HostPattern::Name("api.openai.com".to_owned()),
                methods: vec!["POST".to_owned()],
                path_prefix: "/v1/chat/completions".to_owned(),
                ..manifest::http_base_url()
            },
        ];
        manifest.secrets = vec![SecretRule {
            name: API_KEY.to_owned(),
            hosts: vec![
                HostPattern::BaseUrl,
                HostPattern::Name("api.openai.com".to_owned()),
            ],
            purpose: "The server's API key; a server of your own may need none".to_owned(),
            required: false,
        }];
        manifest
    }

    fn encode(request: ModelRequest) -> Result<Exchange, Error> {
        request::encode(&request)
    }

    fn classify(answer: Response) -> Failure {
        failure::of_answer(&answer)
    }
}
