//! Calls of tools: checked, allowed, held for an approval, begun behind their write-ahead, and settled.

use std::sync::Arc;
use std::time::Instant;

use tracing::Instrument as _;
use uuid::Uuid;

use super::Effect;
use crate::approval::{self, Permission, Verdict};
use crate::eager::{BrokenOff, Eager};
use crate::event::{EventBody, Timing, ToolboxRef};
use crate::id::digest;
use crate::live::Live;
use crate::model::{Effect as Class, Media, NewMedia, Part, ToolCall, ToolOutcome, ToolResult};
use crate::plugin::{CallError, CallRequest, Output, Progress, Tool};
use crate::tail::CallStatus;
use crate::turn::Halt;
use crate::{arguments, schema};

/// What came of a call that was started.
pub(super) type Done = Result<(String, ToolResult, Timing), BrokenOff>;

impl<'e> Effect<'e> {
    /// Begins a call whose arguments are whole, or settles it where it cannot be run.
    pub(super) async fn begin(&mut self, id: &str) -> Result<(), Halt> {
        let Some(call) = self.step.tool_call(id).cloned() else {
            return Err(Halt::Failed(format!("call {id:?} is not in its step")));
        };
        let found = self
            .tools
            .iter()
            .find(|(_, tool)| tool.definition.name == call.tool)
            .cloned();
        let Some((toolbox, tool)) = found else {
            let text = format!("There is no tool {:?}.", call.tool);
            return self.refuse(&call, ToolOutcome::UnknownTool, text).await;
        };
        if !self.step.offers(&call.tool) {
            let text = format!("Tool {:?} was not offered here.", call.tool);
            return self.refuse(&call, ToolOutcome::UnknownTool, text).await;
        }
        let arguments = match Self::check(&tool, &call.arguments) {
            Ok(arguments) => arguments,
            Err(text) => {
                return self
                    .refuse(&call, ToolOutcome::InvalidArguments, text)
                    .await;
            }
        };
        match self.permission(&call, &arguments) {
            Permission::Given => {}
            Permission::Awaited => {
                self.listen();
                return Ok(());
            }
            Permission::ToAsk => return self.hold(&call),
            Permission::Refused(text) => {
                return self.refuse(&call, ToolOutcome::Denied, text).await;
            }
        }
        let runs = self.step.call(id).map_or(0, |call| call.runs);
        let key = Uuid::new_v5(
            &self.exec.session.0,
            format!("call/{}/{id}", self.step.seq).as_bytes(),
        )
        .to_string();
        if tool.effect != Class::Pure {
            // The write-ahead: after a crash this says that the call may have happened.
            self.record(EventBody::CallStarted {
                step: self.step.seq,
                call: id.into(),
                toolbox: toolbox.alias.clone(),
                digest: toolbox.digest.clone(),
                effect: tool.effect,
                key: key.clone(),
                run: runs + 1,
            })?;
            self.flush_at = None;
            if let Err(halt) = self.exec.flush(true).await {
                if matches!(halt, Halt::Stopped) {
                    self.exec.take_back();
                }
                return Err(halt);
            }
        }
        if tool.effect == Class::Pure {
            self.unwritten.push(id.into());
        }
        // Of a call that is not durable yet, watchers hear once it is.
        if !self.exec.is_ahead() {
            self.live(self.started(&call));
        }
        self.start(toolbox, call, tool.effect, key, runs).await
    }

    fn started(&self, call: &ToolCall) -> Live {
        Live::Started {
            step: self.step.seq,
            call: call.id.clone(),
            tool: call.tool.clone(),
        }
    }

    /// Whether a call may start now.
    fn permission(&self, call: &ToolCall, arguments: &serde_json::Value) -> Permission {
        let session = &self.exec.tail.session;
        let config = self.exec.shared.config.get();
        let agent = config.agents.get(&session.agent);
        let judge = || {
            // Of an agent that is configured no more, nobody knows what it was allowed.
            let policy = agent.map(|agent| &agent.tool_policy);
            policy.map_or(Verdict::Ask, |p| p.judge(&call.tool, arguments))
        };
        approval::permission(&self.step, &session.arrived.approvals, &call.id, judge)
    }

    /// Has a person asked about a call.
    fn hold(&mut self, call: &ToolCall) -> Result<(), Halt> {
        let step = self.step.seq;
        self.record(EventBody::CallHeld {
            step,
            call: call.id.clone(),
            request: approval::request(step, call),
        })?;
        self.listen();
        self.due();
        Ok(())
    }

    /// Answers are heard of from now on.
    fn listen(&mut self) {
        let hub = &self.exec.shared.hub;
        self.written
            .get_or_insert_with(|| hub.watch_head(self.exec.session));
    }

    /// Starts or refuses the held calls that a person has answered.
    pub(super) async fn take_answers(&mut self) -> Result<(), Halt> {
        if self.exec.is_ahead() {
            self.exec.flush(true).await?;
        }
        if let Ok(Some(tail)) = self.exec.shared.store.tail(self.exec.session).await {
            self.exec.tail = tail;
        }
        for call in self.held() {
            self.begin(&call).await?;
        }
        Ok(())
    }

    /// Calls that are held and were not started.
    pub(super) fn held(&self) -> Vec<String> {
        let held =
            self.step.calls.iter().filter(|call| {
                call.status == CallStatus::Held && !self.unwritten.contains(&call.id)
            });
        held.map(|call| call.id.clone()).collect()
    }

    fn check(tool: &Tool, arguments: &str) -> Result<serde_json::Value, String> {
        let value = arguments::parse(arguments).map_err(|error| error.to_string())?;
        let validator = schema::validator(&tool.definition.input_schema)?;
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .take(5)
            .map(|error| format!("{error} at {:?}", error.instance_path().to_string()))
            .collect();
        if errors.is_empty() {
            Ok(value)
        } else {
            Err(format!(
                "The arguments break the tool's schema: {}.",
                errors.join("; ")
            ))
        }
    }

    async fn refuse(
        &mut self,
        call: &ToolCall,
        outcome: ToolOutcome,
        text: String,
    ) -> Result<(), Halt> {
        let result = ToolResult {
            call: call.id.clone(),
            tool: call.tool.clone(),
            outcome,
            output: vec![Part::Text(text)],
            whole: None,
        };
        self.record(EventBody::CallSettled {
            step: self.step.seq,
            result,
            timing: Timing::default(),
        })?;
        self.due();
        Ok(())
    }

    /// Starts a call, and settles it if that is all it takes.
    async fn start(
        &mut self,
        toolbox: ToolboxRef,
        call: ToolCall,
        effect: Class,
        key: String,
        earlier_runs: u32,
    ) -> Result<(), Halt> {
        let shared = Arc::clone(&self.exec.shared);
        let (session, step) = (self.exec.session, self.step.seq);
        let cancel = self.cancel.clone();
        let (hub, id) = (shared.hub.clone(), call.id.clone());
        let started = self.exec.is_ahead().then(|| self.started(&call));
        let progress = Progress(Arc::new(move |message| {
            hub.live(
                session,
                Live::Progress {
                    step,
                    call: id.clone(),
                    message,
                },
            );
        }));
        let span = tracing::info_span!("call", step, call = %call.id, tool = %call.tool);
        let task = async move {
            let began = Instant::now();
            let request = CallRequest {
                session,
                call: call.clone(),
                effect,
                idempotency_key: key,
                earlier_runs,
                options: toolbox.options.clone(),
                toolbox: toolbox.alias.clone(),
                cancel,
                progress,
            };
            let answer = shared.plugins.call(&toolbox.digest, request).await;
            let result = worded(&shared, &call, answer).await;
            let timing = Timing {
                first_ms: None,
                total_ms: began.elapsed().as_millis() as u64,
            };
            (call.id, result, timing)
        };
        let task = task.instrument(span);
        if !self.is_alone() {
            self.running.spawn(async { Ok(task.await) });
            return Ok(());
        }
        match Eager::begin(task).await.at_once() {
            Ok(done) => self.settle(done, false).await,
            Err(task) => {
                self.running.spawn(task);
                if let Some(started) = started {
                    self.exec.flush(true).await?;
                    self.live(started);
                }
                Ok(())
            }
        }
    }

    /// The step asks for one call and nothing else, of a tool that leaves nothing behind.
    pub(crate) fn is_one_pure_call(&self) -> bool {
        let mut calls = self.step.calls.iter();
        let (Some(call), None) = (calls.next(), calls.next()) else {
            return false;
        };
        let tool = self.tools.iter().map(|(_, tool)| tool).find(|tool| {
            let called = self.step.tool_call(&call.id);
            called.is_some_and(|called| called.tool == tool.definition.name)
        });
        self.is_alone() && !call.own && tool.is_some_and(|tool| tool.effect == Class::Pure)
    }

    /// The step is one call, with nothing beside it that the call could hold up.
    fn is_alone(&self) -> bool {
        !self.step.asks_model() && self.step.calls.len() == 1
    }

    /// Records the result of a call.
    pub(super) async fn settle(&mut self, done: Done, listening: bool) -> Result<(), Halt> {
        let (id, result, timing) =
            done.map_err(|cause| Halt::Failed(format!("a call broke off in the host: {cause}")))?;
        let acted = self
            .step
            .call(&id)
            .is_some_and(|call| call.status == CallStatus::Started);
        self.record(EventBody::CallSettled {
            step: self.step.seq,
            result,
            timing,
        })?;
        if self.running.is_empty()
            && let Some(ending) = self.over.take()
        {
            self.close(ending)?;
        }
        let last = !listening && self.running.is_empty();
        if acted && !last {
            // What was done to the world is told at once, unless the step's last commit tells it now.
            self.flush().await?;
        } else {
            self.due();
        }
        Ok(())
    }
}

pub(super) async fn keep_media(
    shared: &crate::node::Shared,
    media: NewMedia,
) -> Result<Media, String> {
    let name = digest(&media.data);
    shared
        .store
        .blob_put(&name, &media.data)
        .await
        .map_err(|error| crate::chain(&error))?;
    Ok(Media {
        digest: name,
        media_type: media.media_type,
        size: media.data.len() as u64,
        name: media.name,
    })
}

/// The result of a call, ready to be shown to a model.
async fn worded(
    shared: &crate::node::Shared,
    call: &ToolCall,
    answer: Result<Vec<Output>, CallError>,
) -> ToolResult {
    let (outcome, outputs) = match answer {
        Ok(outputs) => (ToolOutcome::Succeeded, outputs),
        Err(error) => {
            let outcome = match &error {
                CallError::InvalidArguments(_) => ToolOutcome::InvalidArguments,
                CallError::Denied(_) => ToolOutcome::Denied,
                CallError::Failed(_) => ToolOutcome::Failed,
                CallError::Cancelled(_) => ToolOutcome::Interrupted,
                CallError::Crashed(_) => ToolOutcome::Crashed,
            };
            (outcome, vec![Output::Text(error.to_string())])
        }
    };
    let (mut output, mut whole, mut failed) = (Vec::new(), None, None);
    for piece in outputs {
        match piece {
            Output::Text(text) if text.len() <= shared.settings.tool_output_shown => {
                output.push(Part::Text(text));
            }
            Output::Text(text) => {
                let cut = text.floor_char_boundary(shared.settings.tool_output_shown);
                let note = format!("{}\n[{} of {} bytes shown]", &text[..cut], cut, text.len());
                output.push(Part::Text(note));
                let media = NewMedia {
                    media_type: "text/plain".into(),
                    name: None,
                    data: text.into_bytes(),
                };
                match keep_media(shared, media).await {
                    Ok(media) => whole = Some(media),
                    Err(cause) => failed = Some(cause),
                }
            }
            Output::Media(media) => match keep_media(shared, media).await {
                Ok(media) => output.push(Part::Media(media)),
                Err(cause) => failed = Some(cause),
            },
        }
    }
    if let Some(cause) = failed {
        output.push(Part::Text(format!(
            "Part of the output could not be kept: {cause}"
        )));
    }
    ToolResult {
        call: call.id.clone(),
        tool: call.tool.clone(),
        outcome,
        output,
        whole,
    }
}
