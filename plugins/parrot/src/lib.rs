//! The provider `parrot`: a model that needs no server and always does what it is told.
//!
//! For demonstrations and tests. It answers a user message with its words (`You said: …`), unless the
//! message is a *script*: one whose first line is a command. A script says what the model answers,
//! line by line:
//!
//! | line | what the model does |
//! |---|---|
//! | `say TEXT` | says it; `{result}` stands for the newest tool result |
//! | `slow MS TEXT` | says it word by word, with a pause before each |
//! | `reason TEXT` | shows it as reasoning |
//! | `call TOOL JSON` | calls a tool; without JSON, with `{}` |
//! | `hosted TOOL JSON` | calls a tool that its server runs |
//! | `result JSON` | gives the result of the last `hosted` call |
//! | `usage INPUT OUTPUT` | claims these token counts |
//! | `limit BYTES` | fails with `context-overflow` if the transcript holds more text than that |
//! | `fail CLASS MESSAGE` | fails; the class is one of the contract's, `overloaded` for example |
//! | `finish REASON` | ends for this reason, any word |
//! | `break` | ends without a finish, as a broken connection does |
//! | `then` | ends this answer; what follows is the next one |
//! | `# …`, blank | nothing |
//!
//! An answer ends with `finish tool-calls` if it calls a tool and with `finish stop` if not, where the
//! script says nothing else. Successive `say` and `slow` lines are lines of one text.
//!
//! Which answer is due is counted from the transcript: each assistant message after the script took
//! one, except that an answer of which only the beginning is there, because it was cut short, is taken
//! up where it stopped. When there are no answers left, the model repeats what the last user message
//! or the newest tool results said. Notes and summaries are user messages too and no scripts, so a
//! script outlives them: the newest script is the one that counts. A request that ends with a user
//! message beginning with `Summarise` gets a summary and takes no answer.

use mainstay_guest::provider::{
    Exchange, Local, ModelEvent, ModelRequest, NoDecoder, ProviderManifest,
};
use mainstay_guest::types::{
    Content, Effect, Failure, FailureClass, FinishReason, HostedResult, Message, ToolCall, Usage,
    text_of,
};
use mainstay_guest::{Error, Provider, manifest};

mod script;

use script::{Block, Command};

struct Parrot;

mainstay_guest::provider!(Parrot);

impl Provider for Parrot {
    type Decoder = NoDecoder;

    fn manifest() -> ProviderManifest {
        let mut manifest = manifest::provider(
            "parrot",
            env!("CARGO_PKG_VERSION"),
            "A model for demonstrations and tests: local, deterministic, scripted by the prompt",
        );
        manifest.models = vec![manifest::Model {
            id: "parrot".to_owned(),
            context_tokens: Some(1_000_000),
            max_output_tokens: None,
            capabilities: vec![
                manifest::Capability::Tools,
                manifest::Capability::ParallelToolCalls,
                manifest::Capability::Reasoning,
            ],
            price: None,
        }];
        manifest.hosted_tools = vec![
            manifest::HostedTool::new("hosted_look", "Looks something up", Effect::Pure),
            manifest::HostedTool::new("hosted_act", "Does something once", Effect::Once),
        ];
        manifest
    }

    fn encode(request: ModelRequest) -> Result<Exchange, Error> {
        let messages = &request.messages;
        if let Some(Message::User(parts)) = messages.last()
            && text_of(parts).starts_with("Summarise")
        {
            return Ok(summary(messages));
        }
        let Some((at, blocks)) = newest_script(messages)? else {
            return Ok(plain(messages));
        };
        let place = Place::after(&blocks, &messages[at + 1..]);
        match blocks.get(place.block) {
            Some(block) => Ok(answer(block, &place, messages)),
            None => Ok(plain(messages)),
        }
    }
}

/// The newest user message that is a script, and where it stands.
fn newest_script(messages: &[Message]) -> Result<Option<(usize, Vec<Block>)>, Error> {
    for (at, message) in messages.iter().enumerate().rev() {
        let Message::User(parts) = message else {
            continue;
        };
        let text = text_of(parts);
        if script::is_script(&text) {
            let blocks = script::parse(&text).map_err(Error::new)?;
            return Ok(Some((at, blocks)));
        }
    }
    Ok(None)
}

/// How far a script has got.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    /// Index of the block that is due.
    block: usize,
    /// Bytes of its text that were said already, by an answer that was cut short.
    said: usize,
    /// Assistant messages so far, so that the ids of calls differ from answer to answer.
    answers: usize,
}

impl Place {
    fn after(blocks: &[Block], messages: &[Message]) -> Self {
        let mut place = Self::default();
        for (index, message) in messages.iter().enumerate() {
            let Message::Assistant(content) = message else {
                continue;
            };
            place.answers += 1;
            let Some(block) = blocks.get(place.block) else {
                continue;
            };
            // What was the newest tool result when this answer was made.
            let text = block.text(&newest_result(&messages[..index]));
            let said: String = content
                .iter()
                .filter_map(|content| match content {
                    Content::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let calls = content
                .iter()
                .any(|content| matches!(content, Content::ToolCall(_) | Content::HostedCall(_)));
            let rest = &text[place.said..];
            if !calls && !said.is_empty() && rest.len() > said.len() && rest.starts_with(&said) {
                place.said += said.len();
            } else {
                place.block += 1;
                place.said = 0;
            }
        }
        place
    }
}

/// Text of the newest tool result, if there is one.
fn newest_result(messages: &[Message]) -> String {
    messages
        .iter()
        .rev()
        .find_map(|message| match message {
            Message::ToolResult(result) => Some(text_of(&result.output)),
            _ => None,
        })
        .unwrap_or_default()
}

/// What a block of a script answers.
fn answer(block: &Block, place: &Place, messages: &[Message]) -> Exchange {
    let result = newest_result(messages);
    let mut local = Local::new();
    let mut skip = place.said;
    let mut texts = 0;
    let mut calls = 0;
    let mut hosted: Option<String> = None;
    let mut finish = None;
    let mut usage = None;
    let id = |number: usize| format!("call-{}-{number}", place.answers + 1);
    for command in &block.commands {
        match command {
            Command::Say(_) | Command::Slow(..) => {
                let (pause, pieces) = command.pieces(&result);
                let newline = (texts > 0).then(|| "\n".to_owned());
                texts += 1;
                for piece in newline.into_iter().chain(pieces) {
                    let taken = skip.min(piece.len());
                    skip -= taken;
                    if taken < piece.len() {
                        let piece = piece[taken..].to_owned();
                        local.push_after(pause, ModelEvent::TextDelta(piece));
                    }
                }
            }
            Command::Reason(text) if place.said == 0 => {
                local.push(ModelEvent::ReasoningDelta(text.clone()));
            }
            Command::Reason(_) => {}
            Command::Call(tool, arguments) => {
                calls += 1;
                local.call(id(calls), tool, arguments);
            }
            Command::Hosted(tool, arguments) => {
                let id = format!(
                    "hosted-{}-{}",
                    place.answers + 1,
                    hosted.iter().count() + calls
                );
                hosted = Some(id.clone());
                local.push(ModelEvent::HostedCall(ToolCall {
                    id,
                    tool: tool.clone(),
                    arguments: arguments.clone(),
                }));
            }
            Command::Result(data) => {
                if let Some(call) = &hosted {
                    local.push(ModelEvent::HostedResult(HostedResult {
                        call: call.clone(),
                        is_error: false,
                        data: data.clone(),
                    }));
                }
            }
            Command::Usage(input, output) => usage = Some((*input, *output)),
            Command::Limit(limit) => {
                let size = transcript_bytes(messages);
                if size > *limit {
                    local.push(ModelEvent::Failed(Failure::new(
                        FailureClass::ContextOverflow,
                        format!("the transcript has {size} bytes, the limit is {limit}"),
                    )));
                    return local.exchange();
                }
            }
            Command::Fail(class, message) => {
                local.push(ModelEvent::Failed(Failure::new(*class, message)));
                return local.exchange();
            }
            Command::Finish(reason) => finish = Some(reason.clone()),
            Command::Break => return local.exchange(),
        }
    }
    let text = block.text(&result);
    push_usage(&mut local, messages, text.len(), usage);
    local.finish(finish.unwrap_or(if calls > 0 {
        FinishReason::ToolCalls
    } else {
        FinishReason::Stop
    }))
}

/// What is answered without a script, or after its end.
fn plain(messages: &[Message]) -> Exchange {
    let mut results = Vec::new();
    let mut words = None;
    for message in messages.iter().rev() {
        match message {
            Message::ToolResult(result) => results.push(format!(
                "{} answered: {}",
                result.tool,
                first_line(&text_of(&result.output))
            )),
            Message::User(parts) if results.is_empty() => {
                words = Some(format!("You said: {}", text_of(parts)));
                break;
            }
            Message::Assistant(_) if results.is_empty() => {}
            _ => break,
        }
    }
    results.reverse();
    let text = match words {
        Some(words) => words,
        None if results.is_empty() => "Done.".to_owned(),
        None => format!("Done. {}", results.join("; ")),
    };
    let mut local = Local::new();
    push_usage(&mut local, messages, text.len(), None);
    local.push(ModelEvent::TextDelta(text));
    local.finish(FinishReason::Stop)
}

/// A summary of everything before the request for it.
fn summary(messages: &[Message]) -> Exchange {
    let prompts: Vec<String> = messages[..messages.len() - 1]
        .iter()
        .filter_map(|message| match message {
            Message::User(parts) => Some(format!("- {}", first_line(&text_of(parts)))),
            _ => None,
        })
        .collect();
    let text = format!(
        "Summary of {} messages. The user said:\n{}",
        messages.len() - 1,
        prompts.join("\n")
    );
    let mut local = Local::new();
    push_usage(&mut local, messages, text.len(), None);
    local.push(ModelEvent::TextDelta(text));
    local.finish(FinishReason::Stop)
}

fn first_line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    &line[..line.floor_char_boundary(200)]
}

/// Tokens as a server would count them, a quarter of the bytes, unless the script says otherwise.
fn push_usage(local: &mut Local, messages: &[Message], output: usize, claimed: Option<(u32, u32)>) {
    let tokens = |bytes: usize| u32::try_from(bytes.div_ceil(4)).unwrap_or(u32::MAX);
    let (input, output) =
        claimed.unwrap_or_else(|| (tokens(transcript_bytes(messages)), tokens(output)));
    local.push(ModelEvent::Usage(Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        ..Usage::default()
    }));
}

/// Bytes of text in a transcript.
fn transcript_bytes(messages: &[Message]) -> usize {
    messages
        .iter()
        .map(|message| match message {
            Message::System(parts) | Message::User(parts) => text_of(parts).len(),
            Message::Assistant(content) => content
                .iter()
                .map(|content| match content {
                    Content::Text(text) | Content::Reasoning(text) => text.len(),
                    Content::ToolCall(call) | Content::HostedCall(call) => call.arguments.len(),
                    Content::HostedResult(result) => result.data.len(),
                    Content::ProviderState(_) | Content::Media(_) => 0,
                })
                .sum(),
            Message::ToolResult(result) => text_of(&result.output).len(),
        })
        .sum()
}

#[cfg(test)]
mod tests;
