//! Between the types of `mainstay:plugin@0.1.0` and core's. Nothing is judged here: that is done
//! where the value is used.

use mainstay_core::history as ch;
use mainstay_core::model as cm;
use mainstay_core::plugin as cp;

use super::v0_1_0::{history, http, logging, manifest, models, steps, tools, types};

/// Each of some things.
pub(crate) fn list<A, B: From<A>>(from: Vec<A>) -> Vec<B> {
    from.into_iter().map(B::from).collect()
}

/// Two enums of the same cases.
macro_rules! cases {
    ($wit:ty = $core:ty { $($case:ident),+ $(,)? }) => {
        impl From<$wit> for $core {
            fn from(value: $wit) -> Self {
                match value { $(<$wit>::$case => Self::$case),+ }
            }
        }
        impl From<$core> for $wit {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$case => Self::$case),+ }
            }
        }
    };
}

/// Two records of the same fields.
macro_rules! fields {
    ($wit:ty = $core:ty { $($plain:ident),* $(; $($field:ident),+)? }) => {
        impl From<$wit> for $core {
            fn from(value: $wit) -> Self {
                Self { $($plain: value.$plain,)* $($($field: value.$field.into(),)+)? }
            }
        }
        impl From<$core> for $wit {
            fn from(value: $core) -> Self {
                Self { $($plain: value.$plain,)* $($($field: value.$field.into(),)+)? }
            }
        }
    };
}

/// The same, one way: from the guest.
macro_rules! fields_from_guest {
    ($wit:ty => $core:ty { $($plain:ident),* $(; $($field:ident),+)? }) => {
        impl From<$wit> for $core {
            fn from(value: $wit) -> Self {
                Self { $($plain: value.$plain,)* $($($field: value.$field.into(),)+)? }
            }
        }
    };
}

// ---- types -------------------------------------------------------------------------------------

cases!(
    types::Effect = cm::Effect {
        Pure,
        Idempotent,
        Once
    }
);
cases!(
    types::ToolOutcome = cm::ToolOutcome {
        Succeeded,
        Failed,
        InvalidArguments,
        UnknownTool,
        Denied,
        NotStarted,
        Interrupted,
        OutcomeUnknown,
        ResultMissing,
        Crashed,
    }
);
cases!(
    types::ReasoningEffort = cm::ReasoningEffort {
        Off,
        Low,
        Medium,
        High
    }
);
cases!(
    types::FailureClass = cm::FailureClass {
        RateLimited,
        Overloaded,
        Server,
        Transport,
        Incomplete,
        Protocol,
        ContextOverflow,
        ContentFilter,
        Authentication,
        Quota,
        InvalidRequest,
    }
);

fields!(types::Range = cm::Range { after, through });
fields!(
    types::Media = cm::Media {
        digest,
        media_type,
        size,
        name
    }
);
fields!(
    types::NewMedia = cm::NewMedia {
        media_type,
        name,
        data
    }
);
fields!(
    types::ToolCall = cm::ToolCall {
        id,
        tool,
        arguments
    }
);
fields!(
    types::ToolDefinition = cm::ToolDefinition {
        name,
        description,
        input_schema
    }
);
fields!(
    types::HostedResult = cm::HostedResult {
        call,
        is_error,
        data
    }
);
fields!(types::ProviderState = cm::ProviderState { provider, data });
fields!(types::Failure = cm::Failure { message, retry_after_ms; class });

impl From<types::Usage> for cm::Usage {
    fn from(usage: types::Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            output_tokens: usage.output_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            cost: usage.cost,
            // A server says what it counted.
            estimated: false,
        }
    }
}

impl From<cm::Usage> for types::Usage {
    fn from(usage: cm::Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            output_tokens: usage.output_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            cost: usage.cost,
        }
    }
}

impl From<types::Part> for cm::Part {
    fn from(part: types::Part) -> Self {
        match part {
            types::Part::Text(text) => Self::Text(text),
            types::Part::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<cm::Part> for types::Part {
    fn from(part: cm::Part) -> Self {
        match part {
            cm::Part::Text(text) => Self::Text(text),
            cm::Part::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<types::Content> for cm::Content {
    fn from(content: types::Content) -> Self {
        match content {
            types::Content::Text(text) => Self::Text(text),
            types::Content::Reasoning(text) => Self::Reasoning(text),
            types::Content::ToolCall(call) => Self::ToolCall(call.into()),
            types::Content::HostedCall(call) => Self::HostedCall(call.into()),
            types::Content::HostedResult(result) => Self::HostedResult(result.into()),
            types::Content::ProviderState(state) => Self::ProviderState(state.into()),
            types::Content::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<cm::Content> for types::Content {
    fn from(content: cm::Content) -> Self {
        match content {
            cm::Content::Text(text) => Self::Text(text),
            cm::Content::Reasoning(text) => Self::Reasoning(text),
            cm::Content::ToolCall(call) => Self::ToolCall(call.into()),
            cm::Content::HostedCall(call) => Self::HostedCall(call.into()),
            cm::Content::HostedResult(result) => Self::HostedResult(result.into()),
            cm::Content::ProviderState(state) => Self::ProviderState(state.into()),
            cm::Content::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<types::ToolResult> for cm::ToolResult {
    fn from(result: types::ToolResult) -> Self {
        Self {
            call: result.call,
            tool: result.tool,
            outcome: result.outcome.into(),
            output: list(result.output),
            whole: result.whole.map(Into::into),
        }
    }
}

impl From<cm::ToolResult> for types::ToolResult {
    fn from(result: cm::ToolResult) -> Self {
        Self {
            call: result.call,
            tool: result.tool,
            outcome: result.outcome.into(),
            output: list(result.output),
            whole: result.whole.map(Into::into),
        }
    }
}

impl From<types::Message> for cm::Message {
    fn from(message: types::Message) -> Self {
        match message {
            types::Message::System(parts) => Self::System(list(parts)),
            types::Message::User(parts) => Self::User(list(parts)),
            types::Message::Assistant(content) => Self::Assistant(list(content)),
            types::Message::ToolResult(result) => Self::ToolResult(result.into()),
        }
    }
}

impl From<cm::Message> for types::Message {
    fn from(message: cm::Message) -> Self {
        match message {
            cm::Message::System(parts) => Self::System(list(parts)),
            cm::Message::User(parts) => Self::User(list(parts)),
            cm::Message::Assistant(content) => Self::Assistant(list(content)),
            cm::Message::ToolResult(result) => Self::ToolResult(result.into()),
        }
    }
}

impl From<types::ToolChoice> for cm::ToolChoice {
    fn from(choice: types::ToolChoice) -> Self {
        match choice {
            types::ToolChoice::Auto => Self::Auto,
            types::ToolChoice::None => Self::None,
            types::ToolChoice::Required => Self::Required,
            types::ToolChoice::Tool(name) => Self::Tool(name),
        }
    }
}

impl From<cm::ToolChoice> for types::ToolChoice {
    fn from(choice: cm::ToolChoice) -> Self {
        match choice {
            cm::ToolChoice::Auto => Self::Auto,
            cm::ToolChoice::None => Self::None,
            cm::ToolChoice::Required => Self::Required,
            cm::ToolChoice::Tool(name) => Self::Tool(name),
        }
    }
}

impl From<types::ModelOptions> for cm::ModelOptions {
    fn from(options: types::ModelOptions) -> Self {
        Self {
            max_output_tokens: options.max_output_tokens,
            temperature: options.temperature,
            reasoning: options.reasoning.map(Into::into),
            output_schema: options.output_schema,
            extra: options.extra,
        }
    }
}

impl From<cm::ModelOptions> for types::ModelOptions {
    fn from(options: cm::ModelOptions) -> Self {
        Self {
            max_output_tokens: options.max_output_tokens,
            temperature: options.temperature,
            reasoning: options.reasoning.map(Into::into),
            output_schema: options.output_schema,
            extra: options.extra,
        }
    }
}

impl From<types::FinishReason> for cm::FinishReason {
    fn from(reason: types::FinishReason) -> Self {
        match reason {
            types::FinishReason::Stop => Self::Stop,
            types::FinishReason::ToolCalls => Self::ToolCalls,
            types::FinishReason::Length => Self::Length,
            types::FinishReason::ContentFilter => Self::ContentFilter,
            types::FinishReason::Refusal => Self::Refusal,
            types::FinishReason::Paused => Self::Paused,
            types::FinishReason::Other(word) => Self::Other(word),
        }
    }
}

impl From<cm::FinishReason> for types::FinishReason {
    fn from(reason: cm::FinishReason) -> Self {
        match reason {
            cm::FinishReason::Stop => Self::Stop,
            cm::FinishReason::ToolCalls => Self::ToolCalls,
            cm::FinishReason::Length => Self::Length,
            cm::FinishReason::ContentFilter => Self::ContentFilter,
            cm::FinishReason::Refusal => Self::Refusal,
            cm::FinishReason::Paused => Self::Paused,
            cm::FinishReason::Other(word) => Self::Other(word),
        }
    }
}

// ---- logging -----------------------------------------------------------------------------------

impl From<logging::Level> for tracing::Level {
    fn from(level: logging::Level) -> Self {
        match level {
            logging::Level::Trace => Self::TRACE,
            logging::Level::Debug => Self::DEBUG,
            logging::Level::Info => Self::INFO,
            logging::Level::Warn => Self::WARN,
            logging::Level::Error => Self::ERROR,
        }
    }
}

// ---- history -----------------------------------------------------------------------------------

cases!(
    history::Order = ch::Order {
        OldestFirst,
        NewestFirst
    }
);
fields!(history::ModelRef = ch::ModelRef { provider, model });

impl From<ch::Item> for history::Item {
    fn from(item: ch::Item) -> Self {
        Self {
            seq: item.seq,
            at_ms: item.at,
            body: item.body.into(),
        }
    }
}

impl From<ch::ItemBody> for history::ItemBody {
    fn from(body: ch::ItemBody) -> Self {
        match body {
            ch::ItemBody::User(parts) => Self::User(list(parts)),
            ch::ItemBody::Assistant(assistant) => Self::Assistant(assistant.into()),
            ch::ItemBody::ToolResult(result) => Self::ToolResult(result.into()),
            ch::ItemBody::Note(parts) => Self::Note(list(parts)),
            ch::ItemBody::Compaction(compaction) => Self::Compaction(history::Compaction {
                through: compaction.through,
                summary: list(compaction.summary),
            }),
            ch::ItemBody::Recovered(recovered) => Self::Recovered(history::Recovered {
                interrupted: recovered.interrupted,
                settled: recovered.settled,
            }),
            ch::ItemBody::Signal(signal) => Self::Signal(history::Signal {
                name: signal.name,
                data: signal.data,
            }),
            ch::ItemBody::Approval(approval) => Self::Approval(history::Approval {
                key: approval.key,
                verdict: if approval.approved {
                    history::Verdict::Approved
                } else {
                    history::Verdict::Denied
                },
                reason: approval.reason,
            }),
            ch::ItemBody::Child(child) => Self::Child(history::ChildResult {
                key: child.key,
                outcome: match child.outcome {
                    ch::ChildOutcome::Done(parts) => history::ChildOutcome::Done(list(parts)),
                    ch::ChildOutcome::Failed(text) => history::ChildOutcome::Failed(text),
                    ch::ChildOutcome::Cancelled => history::ChildOutcome::Cancelled,
                    ch::ChildOutcome::Quarantined(text) => history::ChildOutcome::Quarantined(text),
                },
            }),
            ch::ItemBody::Timer => Self::Timer,
            ch::ItemBody::Other(other) => Self::Other(history::Other {
                kind: other.kind,
                data: other.data,
            }),
        }
    }
}

impl From<ch::Assistant> for history::Assistant {
    fn from(assistant: ch::Assistant) -> Self {
        Self {
            author: match assistant.author {
                ch::Author::Model(model) => history::Author::Model(model.into()),
                ch::Author::Runner(name) => history::Author::Runner(name),
            },
            content: list(assistant.content),
            ending: match assistant.ending {
                ch::Ending::Finished(reason) => history::Ending::Finished(reason.into()),
                ch::Ending::Failed(failure) => history::Ending::Failed(failure.into()),
                ch::Ending::Interrupted => history::Ending::Interrupted,
            },
            usage: assistant.usage.map(Into::into),
        }
    }
}

impl From<ch::Size> for history::Size {
    fn from(size: ch::Size) -> Self {
        Self {
            items: size.items,
            bytes: size.bytes,
            tokens: size.tokens(),
        }
    }
}

// ---- manifest ----------------------------------------------------------------------------------

cases!(manifest::Scheme = cp::Scheme { Https, Http });
cases!(
    manifest::WorkspaceAccess = cp::Workspace {
        None,
        Read,
        ReadWrite
    }
);
cases!(
    manifest::Capability = cp::Capability {
        Tools,
        ParallelToolCalls,
        Reasoning,
        StructuredOutput,
        ImageInput,
        AudioInput,
        DocumentInput,
    }
);
fields!(
    manifest::Price = cp::Price {
        input,
        output,
        cache_read,
        cache_write
    }
);
fields_from_guest!(manifest::StateFormat => cp::StateFormat { runner, state_version });
fields_from_guest!(manifest::HttpRule => cp::HttpRule { port, methods, path_prefix; scheme, host });
fields_from_guest!(manifest::HostedTool => cp::HostedTool { name, description; effect });

impl From<manifest::HostPattern> for cp::HostPattern {
    fn from(pattern: manifest::HostPattern) -> Self {
        match pattern {
            manifest::HostPattern::Name(name) => Self::Name(name),
            manifest::HostPattern::Subdomains(name) => Self::Subdomains(name),
            manifest::HostPattern::BaseUrl => Self::BaseUrl,
            manifest::HostPattern::Any => Self::Any,
        }
    }
}

impl From<manifest::SecretRule> for cp::SecretRule {
    fn from(rule: manifest::SecretRule) -> Self {
        Self {
            name: rule.name,
            hosts: list(rule.hosts),
            purpose: rule.purpose,
            required: rule.required,
        }
    }
}

impl From<manifest::Model> for cp::Model {
    fn from(model: manifest::Model) -> Self {
        Self {
            id: model.id,
            context_tokens: model.context_tokens,
            max_output_tokens: model.max_output_tokens,
            capabilities: list(model.capabilities),
            price: model.price.map(Into::into),
        }
    }
}

impl From<cp::Model> for manifest::Model {
    fn from(model: cp::Model) -> Self {
        Self {
            id: model.id,
            context_tokens: model.context_tokens,
            max_output_tokens: model.max_output_tokens,
            capabilities: list(model.capabilities),
            price: model.price.map(Into::into),
        }
    }
}

/// Puts what all three manifests have in common into `info`.
fn plugin(info: &mut cp::PluginInfo, plugin: manifest::Plugin) {
    info.name = plugin.name;
    info.version = plugin.version;
    info.summary = plugin.summary;
    info.options_schema = plugin.options_schema;
}

pub(crate) fn runner_manifest(info: &mut cp::PluginInfo, from: manifest::RunnerManifest) {
    plugin(info, from.plugin);
    info.state_version = from.state_version;
    info.accepts = list(from.accepts);
}

pub(crate) fn provider_manifest(info: &mut cp::PluginInfo, from: manifest::ProviderManifest) {
    plugin(info, from.plugin);
    info.http = list(from.http);
    info.secrets = list(from.secrets);
    info.models = list(from.models);
    info.hosted_tools = list(from.hosted_tools);
}

pub(crate) fn toolbox_manifest(info: &mut cp::PluginInfo, from: manifest::ToolboxManifest) {
    plugin(info, from.plugin);
    info.http = list(from.http);
    info.secrets = list(from.secrets);
    info.workspace = from.workspace.into();
}

// ---- steps -------------------------------------------------------------------------------------

cases!(steps::SpawnRefusal = cp::SpawnRefusal { TooDeep, TooMany });
fields!(
    steps::Budget = cp::Budget {
        steps,
        tokens,
        cost,
        time_ms
    }
);
fields!(
    steps::State = cp::State {
        runner,
        state_version,
        data
    }
);
fields!(steps::Tool = cp::ToolView { name, toolbox; effect });
fields_from_guest!(steps::ApprovalRequest => cp::ApprovalRequest { key, question, details });

/// A view, but for its history, which the caller has put into the instance's table.
pub(crate) fn view(
    view: cp::View,
    history: wasmtime::component::Resource<crate::host::history::History>,
) -> steps::View {
    steps::View {
        session: view.session.to_string(),
        now_ms: view.now,
        trigger: view.trigger.into(),
        fresh: view.fresh.into(),
        context: view.context.into(),
        history,
        open_calls: list(view.open_calls),
        agent: steps::Agent {
            name: view.agent.name,
            system_prompt: view.agent.system_prompt,
            model: view.agent.model.into(),
            model_info: view.agent.model_info.map(Into::into),
            options: view.agent.options,
        },
        tools: list(view.tools),
        budget: view.budget.into(),
        state: view.state.map(Into::into),
    }
}

impl From<cp::Trigger> for steps::Trigger {
    fn from(trigger: cp::Trigger) -> Self {
        match trigger {
            cp::Trigger::TurnStarted => Self::TurnStarted,
            cp::Trigger::ModelFinished(reason) => Self::ModelFinished(reason.into()),
            cp::Trigger::ModelFailed(failure) => Self::ModelFailed(failure.into()),
            cp::Trigger::ToolsFinished => Self::ToolsFinished,
            cp::Trigger::Spawned => Self::Spawned,
            cp::Trigger::SpawnRefused(refusal) => Self::SpawnRefused(refusal.into()),
            cp::Trigger::Compacted => Self::Compacted,
            cp::Trigger::CompactionFailed(failure) => Self::CompactionFailed(failure.into()),
            cp::Trigger::WaitEnded(cp::WaitEnd::Met(index)) => {
                Self::WaitEnded(steps::WaitEnd::Met(index))
            }
            cp::Trigger::WaitEnded(cp::WaitEnd::Steered) => {
                Self::WaitEnded(steps::WaitEnd::Steered)
            }
            cp::Trigger::Recovered => Self::Recovered,
            cp::Trigger::Other(word) => Self::Other(word),
        }
    }
}

impl From<steps::Decision> for cp::Decision {
    fn from(decision: steps::Decision) -> Self {
        Self {
            entries: list(decision.entries),
            action: decision.action.into(),
            state: decision.state,
        }
    }
}

impl From<steps::Entry> for cp::Entry {
    fn from(entry: steps::Entry) -> Self {
        match entry {
            steps::Entry::Say(parts) => Self::Say(list(parts)),
            steps::Entry::Note(parts) => Self::Note(list(parts)),
            steps::Entry::Answer(answer) => Self::Answer(cp::Answer {
                call: answer.call,
                is_error: answer.is_error,
                output: list(answer.output),
            }),
        }
    }
}

impl From<steps::Action> for cp::Action {
    fn from(action: steps::Action) -> Self {
        match action {
            steps::Action::CallModel(call) => Self::CallModel(call.into()),
            steps::Action::CallTools(calls) => Self::CallTools(list(calls)),
            steps::Action::Wait(wait) => Self::Wait(cp::Wait {
                until: list(wait.until),
            }),
            steps::Action::Spawn(children) => Self::Spawn(list(children)),
            steps::Action::Compact(compact) => Self::Compact(cp::Compact {
                through: compact.through,
                summary: match compact.summary {
                    steps::Summary::Text(text) => cp::Summary::Text(text),
                    steps::Summary::Model(call) => cp::Summary::Model(Box::new(call.into())),
                },
            }),
            steps::Action::Done => Self::Done,
            steps::Action::Fail(message) => Self::Fail(message),
        }
    }
}

impl From<steps::ModelCall> for cp::ModelCall {
    fn from(call: steps::ModelCall) -> Self {
        Self {
            model: call.model.map(Into::into),
            transcript: list(call.transcript),
            tools: match call.tools {
                steps::ToolSet::All => cp::ToolSet::All,
                steps::ToolSet::Only(names) => cp::ToolSet::Only(names),
            },
            own_tools: list(call.own_tools),
            tool_choice: call.tool_choice.into(),
            hosted_tools: call.hosted_tools,
            options: call.options.into(),
        }
    }
}

impl From<steps::Segment> for cp::Segment {
    fn from(segment: steps::Segment) -> Self {
        match segment {
            steps::Segment::Items(range) => Self::Items(range.into()),
            steps::Segment::Message(message) => Self::Message(message.into()),
        }
    }
}

impl From<steps::Condition> for cp::Condition {
    fn from(condition: steps::Condition) -> Self {
        match condition {
            steps::Condition::Time(at) => Self::Time(at),
            steps::Condition::Signal(name) => Self::Signal(name),
            steps::Condition::Approval(request) => Self::Approval(request.into()),
            steps::Condition::Children(keys) => Self::Children(keys),
        }
    }
}

impl From<steps::Child> for cp::Child {
    fn from(child: steps::Child) -> Self {
        Self {
            key: child.key,
            agent: child.agent,
            prompt: list(child.prompt),
        }
    }
}

// ---- http --------------------------------------------------------------------------------------

impl From<http::Request> for cp::HttpRequest {
    fn from(request: http::Request) -> Self {
        Self {
            method: request.method,
            url: request.url,
            headers: request
                .headers
                .into_iter()
                .map(|header| (header.name, header.value.into()))
                .collect(),
            body: list(request.body),
        }
    }
}

impl From<http::HeaderValue> for cp::HeaderValue {
    fn from(value: http::HeaderValue) -> Self {
        match value {
            http::HeaderValue::Text(text) => Self::Text(text),
            http::HeaderValue::Secret(secret) => Self::Secret {
                name: secret.name,
                prefix: secret.prefix,
            },
        }
    }
}

impl From<http::Chunk> for cp::Chunk {
    fn from(chunk: http::Chunk) -> Self {
        match chunk {
            http::Chunk::Bytes(bytes) => Self::Bytes(bytes),
            http::Chunk::MediaBase64(digest) => Self::MediaBase64(digest),
            http::Chunk::Media(digest) => Self::Media(digest),
        }
    }
}

pub(crate) fn response(head: cp::ResponseHead, body: Vec<u8>) -> http::Response {
    http::Response {
        status: head.status,
        headers: head.headers,
        body,
    }
}

// ---- models ------------------------------------------------------------------------------------

impl From<cp::ModelRequest> for models::ModelRequest {
    fn from(request: cp::ModelRequest) -> Self {
        Self {
            model: request.model,
            messages: list(request.messages),
            tools: list(request.tools),
            tool_choice: request.tool_choice.into(),
            hosted_tools: request.hosted_tools,
            options: request.options.into(),
            config: models::Config {
                base_url: request.config.base_url,
                secrets: request.config.secrets,
                options: request.config.options,
            },
        }
    }
}

impl From<models::Exchange> for cp::Exchange {
    fn from(exchange: models::Exchange) -> Self {
        match exchange {
            models::Exchange::Http(http) => Self::Http {
                request: http.request.into(),
                memo: http.memo,
            },
            models::Exchange::Local(events) => Self::Local(
                events
                    .into_iter()
                    .map(|local| cp::LocalEvent {
                        after_ms: local.after_ms,
                        event: local.event.into(),
                    })
                    .collect(),
            ),
        }
    }
}

impl From<models::ModelEvent> for cp::ModelEvent {
    fn from(event: models::ModelEvent) -> Self {
        match event {
            models::ModelEvent::TextDelta(text) => Self::TextDelta(text),
            models::ModelEvent::ReasoningDelta(text) => Self::ReasoningDelta(text),
            models::ModelEvent::ToolCallStart(start) => Self::ToolCallStart {
                id: start.id,
                tool: start.tool,
            },
            models::ModelEvent::ToolCallDelta(delta) => Self::ToolCallDelta {
                id: delta.id,
                arguments: delta.arguments,
            },
            models::ModelEvent::ToolCallEnd(id) => Self::ToolCallEnd { id },
            models::ModelEvent::HostedCall(call) => Self::HostedCall(call.into()),
            models::ModelEvent::HostedResult(result) => Self::HostedResult(result.into()),
            models::ModelEvent::ProviderState(data) => Self::ProviderState(data),
            models::ModelEvent::Media(media) => Self::Media(media.into()),
            models::ModelEvent::Usage(usage) => Self::Usage(usage.into()),
            models::ModelEvent::Finished(reason) => Self::Finished(reason.into()),
            models::ModelEvent::Failed(failure) => Self::Failed(failure.into()),
        }
    }
}

// ---- tools -------------------------------------------------------------------------------------

fields_from_guest!(tools::Tool => cp::Tool { ; definition, effect });

pub(crate) fn call_request(request: cp::CallRequest) -> tools::CallRequest {
    tools::CallRequest {
        session: request.session.to_string(),
        id: request.call.id,
        tool: request.call.tool,
        arguments: request.call.arguments,
        effect: request.effect.into(),
        idempotency_key: request.idempotency_key,
        earlier_runs: request.earlier_runs,
        options: request.options,
    }
}

impl From<tools::Output> for cp::Output {
    fn from(output: tools::Output) -> Self {
        match output {
            tools::Output::Text(text) => Self::Text(text),
            tools::Output::Media(media) => Self::Media(media.into()),
        }
    }
}

impl From<tools::CallError> for cp::CallError {
    fn from(error: tools::CallError) -> Self {
        match error {
            tools::CallError::InvalidArguments(text) => Self::InvalidArguments(text),
            tools::CallError::Denied(text) => Self::Denied(text),
            tools::CallError::Failed(text) => Self::Failed(text),
            tools::CallError::Cancelled(text) => Self::Cancelled(text),
        }
    }
}
