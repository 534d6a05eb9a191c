//! What stands in for the host when a plugin is tested natively.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::http::{FetchError, Request, Response};
use crate::manifest::Model;
use crate::provider::{Decoder, ModelEvent};
use crate::runner::{
    Agent, Budget, History, Item, ItemBody, ModelRef, Order, Page, Runner, Size, State, Step, Tool,
    Trigger, View,
};
use crate::toolbox::{CallRequest, Effect, Workspace};
use crate::types::{Content, Part, Range, ToolCall};
use crate::workspace::{Entry, EntryKind, Error};

/// A history in memory, with a builder for the view of it that a runner gets.
#[derive(Clone, Debug, Default)]
pub struct MemoryHistory {
    items: Vec<Item>,
    media: BTreeMap<String, Vec<u8>>,
    page: Cell<u32>,
}

impl MemoryHistory {
    /// A history without items.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A history of these items, whose seqs grow.
    ///
    /// # Panics
    ///
    /// If they do not.
    #[must_use]
    pub fn of(items: Vec<Item>) -> Self {
        assert!(items.is_sorted_by(|a, b| a.seq < b.seq), "seqs must grow");
        Self {
            items,
            ..Self::default()
        }
    }

    /// Adds an item under a seq ten above the last, and returns the seq: there are gaps, as in a real
    /// history.
    pub fn push(&mut self, body: ItemBody) -> u64 {
        let seq = self.last() + 10;
        self.items.push(Item {
            seq,
            at_ms: seq * 1000,
            body,
        });
        seq
    }

    /// Adds a prompt.
    pub fn user(&mut self, text: &str) -> u64 {
        self.push(ItemBody::User(vec![Part::text(text)]))
    }

    /// Adds bytes that an item refers to.
    pub fn add_media(&mut self, digest: &str, data: Vec<u8>) {
        self.media.insert(digest.to_owned(), data);
    }

    /// Makes pages no longer than this, to see whether a runner reads on.
    pub fn limit_pages(&self, items: u32) {
        self.page.set(items);
    }

    /// Seq of the newest item, 0 if there is none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.items.last().map_or(0, |item| item.seq)
    }

    /// The items.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// A view of everything, with all of it fresh, an agent without a system prompt, no tools and 50
    /// steps. Its fields may be changed before a runner is asked.
    #[must_use]
    pub fn view(&self, trigger: Trigger) -> View<'_> {
        let all = Range {
            after: 0,
            through: self.last(),
        };
        View {
            session: "00000000-0000-7000-8000-000000000000".to_owned(),
            now_ms: self.last() * 1000,
            trigger,
            fresh: all,
            context: all,
            history: self,
            open_calls: Vec::new(),
            agent: agent(),
            tools: Vec::new(),
            budget: Budget {
                steps: 50,
                tokens: None,
                cost: None,
                time_ms: None,
            },
            state: None,
        }
    }

    fn in_range(&self, range: Range) -> impl DoubleEndedIterator<Item = &Item> {
        self.items
            .iter()
            .filter(move |item| range.contains(item.seq))
    }
}

impl History for MemoryHistory {
    fn read(&self, items: Range, order: Order, limit: u32) -> Page {
        let most = match self.page.get() {
            0 => limit.min(1000),
            page => limit.min(page),
        };
        let found: Vec<Item> = match order {
            Order::OldestFirst => self.in_range(items).cloned().collect(),
            Order::NewestFirst => self.in_range(items).rev().cloned().collect(),
        };
        let most = (most as usize).max(1);
        let more = found.len() > most;
        Page {
            items: found.into_iter().take(most).collect(),
            more,
        }
    }

    fn measure(&self, items: Range) -> Size {
        let bytes: usize = self.in_range(items).map(|item| bytes(&item.body)).sum();
        Size {
            items: self.in_range(items).count() as u64,
            bytes: bytes as u64,
            tokens: bytes.div_ceil(4) as u64,
        }
    }

    fn read_media(&self, digest: &str, offset: u64, length: u32) -> Option<Vec<u8>> {
        let data = self.media.get(digest)?;
        let start = data
            .len()
            .min(usize::try_from(offset).unwrap_or(usize::MAX));
        let end = data.len().min(start.saturating_add(length as usize));
        Some(data[start..end].to_vec())
    }
}

/// Bytes of text in an item.
fn bytes(body: &ItemBody) -> usize {
    let parts = |parts: &[Part]| -> usize {
        parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.len(),
                Part::Media(_) => 0,
            })
            .sum()
    };
    match body {
        ItemBody::User(list) | ItemBody::Note(list) => parts(list),
        ItemBody::Assistant(answer) => answer
            .content
            .iter()
            .map(|content| match content {
                Content::Text(text) | Content::Reasoning(text) => text.len(),
                Content::ToolCall(call) | Content::HostedCall(call) => call.arguments.len(),
                Content::HostedResult(result) => result.data.len(),
                Content::ProviderState(_) | Content::Media(_) => 0,
            })
            .sum(),
        ItemBody::ToolResult(result) => parts(&result.output),
        ItemBody::Compaction(compaction) => parts(&compaction.summary),
        ItemBody::Signal(signal) => signal.data.len(),
        ItemBody::Other(other) => other.data.len(),
        ItemBody::Recovered(_) | ItemBody::Approval(_) | ItemBody::Child(_) | ItemBody::Timer => 0,
    }
}

/// An agent of the name `test` that asks the model `parrot` of the provider `parrot`.
#[must_use]
pub fn agent() -> Agent {
    Agent {
        name: "test".to_owned(),
        system_prompt: None,
        model: ModelRef {
            provider: "parrot".to_owned(),
            model: "parrot".to_owned(),
        },
        model_info: Some(Model {
            id: "parrot".to_owned(),
            context_tokens: None,
            max_output_tokens: None,
            capabilities: Vec::new(),
            price: None,
        }),
        options: None,
    }
}

/// A tool of a session.
#[must_use]
pub fn tool(name: &str, effect: Effect) -> Tool {
    Tool {
        name: name.to_owned(),
        toolbox: "test".to_owned(),
        effect,
    }
}

/// Asks a runner as the host does: twice, because the same view must give the same decision.
///
/// # Errors
///
/// Those of [`runner::decide`](crate::runner::decide).
///
/// # Panics
///
/// If the two answers differ.
pub fn decide<R: Runner>(view: &View<'_>) -> Result<Step, crate::Error> {
    let first = crate::runner::decide::<R>(view);
    let second = crate::runner::decide::<R>(view);
    assert_eq!(first, second, "the same view must give the same decision");
    first
}

/// The state to put into the next view, after a step of this runner.
#[must_use]
pub fn stored<R: Runner>(step: &Step) -> Option<State> {
    let manifest = R::manifest();
    step.state.clone().map(|data| State {
        runner: manifest.plugin.name,
        state_version: manifest.state_version,
        data,
    })
}

/// Feeds an answer to a decoder whole and returns what it says, deltas of one kind joined as the host
/// joins them.
#[must_use]
pub fn decode<D: Decoder>(head: &Response, memo: &[u8], answer: &[u8]) -> Vec<ModelEvent> {
    decode_pieces::<D>(head, memo, &[answer])
}

/// Feeds an answer whole, byte by byte, and cut in two at every place, and returns what the decoder
/// says each time.
///
/// # Panics
///
/// If a cut makes a difference, or if anything follows `finished` or `failed`.
#[must_use]
pub fn decode_every_cut<D: Decoder>(
    head: &Response,
    memo: &[u8],
    answer: &[u8],
) -> Vec<ModelEvent> {
    let whole = decode::<D>(head, memo, answer);
    let single: Vec<&[u8]> = answer.chunks(1).collect();
    assert_eq!(
        whole,
        decode_pieces::<D>(head, memo, &single),
        "fed byte by byte, the answer means something else"
    );
    for cut in 1..answer.len() {
        let (left, right) = answer.split_at(cut);
        assert_eq!(
            whole,
            decode_pieces::<D>(head, memo, &[left, right]),
            "cut at byte {cut}, the answer means something else"
        );
    }
    whole
}

fn decode_pieces<D: Decoder>(head: &Response, memo: &[u8], pieces: &[&[u8]]) -> Vec<ModelEvent> {
    let mut decoder = D::new(head.clone(), memo.to_vec());
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece, &mut events);
        if ended(&events) {
            return joined(events);
        }
    }
    decoder.finish(&mut events);
    ended(&events);
    joined(events)
}

/// Whether an answer has its end, which must be last.
fn ended(events: &[ModelEvent]) -> bool {
    let end = events
        .iter()
        .position(|event| matches!(event, ModelEvent::Finished(_) | ModelEvent::Failed(_)));
    match end {
        Some(end) => {
            assert_eq!(
                end + 1,
                events.len(),
                "nothing may follow {:?}",
                events[end]
            );
            true
        }
        None => false,
    }
}

/// Joins deltas that follow each other and are of one kind, and keeps the last usage only: what is
/// left does not depend on how the bytes came.
fn joined(events: Vec<ModelEvent>) -> Vec<ModelEvent> {
    let mut all: Vec<ModelEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(ModelEvent::TextDelta(text)), ModelEvent::TextDelta(more))
            | (Some(ModelEvent::ReasoningDelta(text)), ModelEvent::ReasoningDelta(more)) => {
                text.push_str(&more);
            }
            (Some(ModelEvent::ToolCallDelta(call)), ModelEvent::ToolCallDelta(more))
                if call.id == more.id =>
            {
                call.arguments.push_str(&more.arguments);
            }
            (Some(ModelEvent::Usage(usage)), ModelEvent::Usage(newer)) => *usage = newer,
            (_, event) => all.push(event),
        }
    }
    all
}

/// What a fetch is answered with.
type Fetch = Box<dyn Fn(&Request) -> Result<Response, FetchError>>;

/// A host for a running call.
#[derive(Default)]
pub struct Host {
    files: Option<Files>,
    fetch: Option<Fetch>,
    cancelled_after: Cell<Option<u32>>,
    progress: RefCell<Vec<String>>,
}

impl Host {
    /// A host that grants nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Grants a workspace with these files.
    #[must_use]
    pub fn with_files(mut self, files: Files) -> Self {
        self.files = Some(files);
        self
    }

    /// Answers every fetch with this function.
    #[must_use]
    pub fn with_fetch(
        mut self,
        fetch: impl Fn(&Request) -> Result<Response, FetchError> + 'static,
    ) -> Self {
        self.fetch = Some(Box::new(fetch));
        self
    }

    /// Cancels the call once it has asked this many times in vain.
    #[must_use]
    pub fn cancelled_after(self, questions: u32) -> Self {
        self.cancelled_after.set(Some(questions));
        self
    }

    /// The files, as they are now.
    #[must_use]
    pub fn files(&self) -> Option<&Files> {
        self.files.as_ref()
    }

    /// What was shown to people.
    #[must_use]
    pub fn progress_seen(&self) -> Vec<String> {
        self.progress.borrow().clone()
    }
}

impl crate::toolbox::Host for Host {
    fn progress(&self, message: &str) {
        self.progress.borrow_mut().push(message.to_owned());
    }

    fn cancelled(&self) -> bool {
        match self.cancelled_after.get() {
            Some(0) => true,
            Some(left) => {
                self.cancelled_after.set(Some(left - 1));
                false
            }
            None => false,
        }
    }

    fn fetch(&self, request: &Request) -> Result<Response, FetchError> {
        match &self.fetch {
            Some(fetch) => fetch(request),
            None => Err(FetchError::Denied("no host is granted".to_owned())),
        }
    }

    fn workspace(&self) -> Option<Box<dyn Workspace + '_>> {
        self.files
            .as_ref()
            .map(|files| Box::new(files) as Box<dyn Workspace + '_>)
    }
}

/// A workspace in memory. Its folders are those that its files are in.
#[derive(Debug, Default)]
pub struct Files {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    read_only: bool,
}

impl Files {
    /// A workspace with these files.
    #[must_use]
    pub fn new(files: &[(&str, &str)]) -> Self {
        Self {
            files: RefCell::new(
                files
                    .iter()
                    .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
                    .collect(),
            ),
            read_only: false,
        }
    }

    /// Refuses writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// A file's text, if it exists and is text.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.files.borrow().get(path)?.clone()).ok()
    }
}

impl Workspace for &Files {
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let prefix = if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}/")
        };
        let files = self.files.borrow();
        let mut entries = BTreeMap::new();
        for (path, data) in files.iter() {
            let Some(rest) = path.strip_prefix(&prefix) else {
                continue;
            };
            let (name, kind, size) = match rest.split_once('/') {
                Some((name, _)) => (name, EntryKind::Folder, 0),
                None => (rest, EntryKind::File, data.len() as u64),
            };
            entries.insert(
                name.to_owned(),
                Entry {
                    name: name.to_owned(),
                    kind,
                    size,
                },
            );
        }
        if entries.is_empty() && !folder.is_empty() {
            return Err(Error::NotFound(folder.to_owned()));
        }
        Ok(entries.into_values().collect())
    }

    fn stat(&self, path: &str) -> Result<Option<Entry>, Error> {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        if let Some(data) = self.files.borrow().get(path) {
            return Ok(Some(Entry {
                name,
                kind: EntryKind::File,
                size: data.len() as u64,
            }));
        }
        Ok(self.list(path).ok().map(|_| Entry {
            name,
            kind: EntryKind::Folder,
            size: 0,
        }))
    }

    fn read_at(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
        let files = self.files.borrow();
        let data = files
            .get(path)
            .ok_or_else(|| Error::NotFound(path.to_owned()))?;
        let start = data
            .len()
            .min(usize::try_from(offset).unwrap_or(usize::MAX));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let end = data.len().min(start.saturating_add(length));
        Ok(data[start..end].to_vec())
    }

    fn write(&self, path: &str, data: &[u8]) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::Denied(path.to_owned()));
        }
        self.files
            .borrow_mut()
            .insert(path.to_owned(), data.to_vec());
        Ok(())
    }
}

/// A call of a tool, for the first time.
#[must_use]
pub fn call(tool: &str, effect: Effect, arguments: &str) -> CallRequest {
    CallRequest {
        session: "00000000-0000-7000-8000-000000000000".to_owned(),
        id: "call-1".to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.to_owned(),
        effect,
        idempotency_key: "key-1".to_owned(),
        earlier_runs: 0,
        options: None,
    }
}

/// A model's call of a tool.
#[must_use]
pub fn tool_call(id: &str, tool: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.to_owned(),
    }
}
