//! A session as lines of JSON, and the way back: a header that names the session and its origin, its
//! events as they are logged, the bytes that they refer to, and an end with the counts, so that a file
//! that was cut off is known as such. Where old bodies were compacted, the rows that hold their text
//! stand before the events. Nothing is left out and nothing has to be taken out: secrets are
//! put in at egress and redacted from answers, so the log holds their names alone.
//!
//! ```text
//! {"mainstay_export":1,"session":…,"origin":…,"head":2,"events":2}
//! {"text":{"item":{…},"n":0}}
//! {"text":{"input":{…}}}
//! {"session":…,"seq":1,"id":…,"type":"session.created","version":1,"at":…,"data":{…}}
//! {"session":…,"seq":2,…}
//! {"blob":"<SHA-256>","base64":"…"}
//! {"end":true,"events":2,"blobs":1}
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commit::{Commit, Refused, Reply, Write};
use crate::event::Record;
use crate::history::Item;
use crate::id::{self, Digest, Millis, Seq, SessionId};
use crate::node::Node;
use crate::port::{Dump, Store, StoreError};
use crate::rebuild::Rows;
use crate::replay::{Replay, ReplayError, Replayed};
use crate::tail::Input;

/// The format that this build writes, and the only one that it reads.
pub const FORMAT: u64 = 1;

/// Events of a page, read or taken at once.
const PAGE: u32 = 256;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    mainstay_export: u64,
    session: SessionId,
    /// The name of the store whose session this is.
    origin: String,
    /// The last seq that the file holds.
    head: Seq,
    events: u64,
}

/// A row that holds the text of stubs.
#[derive(Serialize, Deserialize)]
struct Text {
    text: Row,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    /// With its position among those that the same event began.
    Item {
        item: Item,
        n: u32,
    },
    Input {
        input: Input,
    },
}

/// Bytes that events refer to.
#[derive(Serialize, Deserialize)]
struct Blob {
    blob: Digest,
    /// `None` where the store that was exported holds them no more.
    base64: Option<String>,
}

/// The last line.
#[derive(Serialize, Deserialize)]
struct End {
    end: bool,
    events: u64,
    /// Lines of blobs.
    blobs: u64,
    /// Lines of texts.
    #[serde(default, skip_serializing_if = "is_none")]
    texts: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The lines of a session's export, without line breaks, as far as its log goes now. `origin` is this
/// store's name; an import that is not adopted keeps the name of the store that it belongs to.
///
/// Reads page by page, and one blob at a time. Where bodies were compacted, the session's rows are held
/// in memory.
///
/// # Errors
/// [`Refused::NotFound`], first or, where the session is deleted meanwhile, later. The stream ends with
/// its first error.
///
/// # Cancel safety
/// It only reads.
pub fn export(
    store: Arc<dyn Store>,
    session: SessionId,
    origin: &str,
) -> impl Stream<Item = Result<String, StoreError>> + Send + 'static + use<> {
    let writer = Writer {
        store,
        session,
        origin: origin.to_owned(),
        stage: Stage::Header,
        head: 0,
        events: 0,
        texts: VecDeque::new(),
        texts_told: 0,
        page: VecDeque::new(),
        digests: BTreeSet::new(),
        blobs: 0,
    };
    stream::try_unfold(writer, |mut writer| async move {
        Ok(writer.next().await?.map(|line| (line, writer)))
    })
}

struct Writer {
    store: Arc<dyn Store>,
    session: SessionId,
    origin: String,
    stage: Stage,
    head: Seq,
    /// Written so far, which is also the last seq of them.
    events: u64,
    texts: VecDeque<Text>,
    /// Of them, those that are written.
    texts_told: u64,
    page: VecDeque<Record>,
    digests: BTreeSet<Digest>,
    blobs: u64,
}

enum Stage {
    Header,
    Texts,
    Events,
    Blobs,
    Over,
}

impl Writer {
    async fn next(&mut self) -> Result<Option<String>, StoreError> {
        let gone = || StoreError::from(Refused::NotFound(self.session));
        if matches!(self.stage, Stage::Header) {
            let tail = self.store.tail(self.session).await?.ok_or_else(gone)?;
            self.head = tail.session.head;
            self.stage = Stage::Texts;
            if tail.session.compacted_through > 0 {
                self.texts = texts(self.store.dump(self.session).await?);
            }
            let origin = tail.session.imported().unwrap_or(&self.origin);
            return Ok(Some(json(&Header {
                mainstay_export: FORMAT,
                session: self.session,
                origin: origin.to_owned(),
                head: self.head,
                events: self.head,
            })));
        }
        if matches!(self.stage, Stage::Texts) {
            if let Some(text) = self.texts.pop_front() {
                self.texts_told += 1;
                return Ok(Some(json(&text)));
            }
            self.stage = Stage::Events;
        }
        if matches!(self.stage, Stage::Events) {
            if self.page.is_empty() && self.events < self.head {
                let page = self.store.events(self.session, self.events, PAGE).await?;
                let (page, _) = page.ok_or_else(gone)?;
                self.page = page.into();
            }
            if self.events < self.head {
                let record = self.page.pop_front().filter(|r| r.seq == self.events + 1);
                let record = record.ok_or_else(|| StoreError::Damaged {
                    session: self.session,
                    cause: format!("event {} is not in the log", self.events + 1),
                })?;
                self.events += 1;
                refer(&record.data, &mut self.digests);
                return Ok(Some(json(&record)));
            }
            self.stage = Stage::Blobs;
        }
        if matches!(self.stage, Stage::Blobs) {
            if let Some(blob) = self.digests.pop_first() {
                let bytes = self.store.blob(&blob).await?;
                let base64 = bytes.map(|bytes| STANDARD.encode(bytes));
                self.blobs += 1;
                return Ok(Some(json(&Blob { blob, base64 })));
            }
            self.stage = Stage::Over;
            return Ok(Some(json(&End {
                end: true,
                events: self.events,
                blobs: self.blobs,
                texts: self.texts_told,
            })));
        }
        Ok(None)
    }
}

/// The rows that may hold the text of a stub.
fn texts(dump: Dump) -> VecDeque<Text> {
    let rows = Rows::from(dump);
    let items = rows.items.into_iter();
    let inputs = rows.inputs.into_iter();
    items
        .map(|((_, n), item)| Row::Item { item, n })
        .chain(inputs.map(|(_, input)| Row::Input { input }))
        .map(|text| Text { text })
        .collect()
}

fn json(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("a line serialises")
}

/// Adds the digests of the media in an event's data. What media look like is the same wherever they
/// stand, in types included that this build does not know.
fn refer(data: &Value, digests: &mut BTreeSet<Digest>) {
    match data {
        Value::Object(fields) => {
            let field = |name| fields.get(name);
            if let (Some(Value::String(digest)), Some(Value::String(_)), Some(Value::Number(_))) =
                (field("digest"), field("media_type"), field("size"))
            {
                digests.insert(digest.clone());
            }
            fields.values().for_each(|value| refer(value, digests));
        }
        Value::Array(values) => values.iter().for_each(|value| refer(value, digests)),
        _ => {}
    }
}

/// Takes the lines of an export in, and so drives [`Node::replay`] and the store's blobs.
///
/// What was taken before an error stays, and the same file may be fed again from its first line: what
/// is held already is found equal.
pub struct Importer {
    target: Target,
    strict: bool,
    /// Of the line that was read last, from 1.
    line: u64,
    header: Option<Header>,
    /// Events that were read and not taken yet, with their lines.
    page: Vec<(u64, Record)>,
    /// Rows that hold the text of stubs.
    texts: Arc<Rows>,
    events: u64,
    blobs: u64,
    text_lines: u64,
    ended: bool,
    so_far: Imported,
}

/// Who takes an import in.
enum Target {
    /// Its followers hear of it.
    Node(Arc<Node>),
    Store(Arc<dyn Store>, Millis),
}

impl Target {
    fn store(&self) -> &Arc<dyn Store> {
        match self {
            Self::Node(node) => node.store(),
            Self::Store(store, _) => store,
        }
    }

    async fn replay(&self, session: SessionId, replay: Replay) -> Result<Replayed, StoreError> {
        let (store, at) = match self {
            Self::Node(node) => return node.replay(session, replay).await,
            Self::Store(store, at) => (store, *at),
        };
        let write = Write::Replay(replay);
        let committed = store.commit(Commit { session, at, write }).await?;
        let Reply::Replayed(replayed) = committed.reply else {
            unreachable!("a replay is answered by how far it got")
        };
        Ok(replayed)
    }
}

/// What an import came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    pub session: Option<SessionId>,
    /// The last seq of the session that is held now.
    pub head: Seq,
    /// Events that are new.
    pub applied: u64,
    /// Events that were held already, equal.
    pub held: u64,
    /// Events that were left out: the session has another origin, and the import was not strict.
    pub skipped: u64,
    /// Blobs that were checked and are held now.
    pub blobs: u64,
    /// Blobs that the export had lost already.
    pub missing_blobs: u64,
    /// The first event that could not be taken. None behind it was.
    pub refused: Option<Refusal>,
}

/// An event that an import did not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("line {line}: {cause}")]
pub struct Refusal {
    pub line: u64,
    #[source]
    pub cause: ReplayError,
}

/// Why an import stopped.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("line {line} is not JSON; the file is damaged, cut off or no export")]
    NotJson {
        line: u64,
        #[source]
        cause: serde_json::Error,
    },
    #[error("line {line} is not the header of an export; nothing was imported")]
    NotAnExport { line: u64 },
    #[error(
        "line {line}: the export has format {found}, and this build reads format {FORMAT}; \
         import it with the build that wrote it, or a newer one"
    )]
    OtherFormat { line: u64, found: u64 },
    #[error("line {line} is neither an event nor a blob nor the end; the file is damaged")]
    Malformed {
        line: u64,
        #[source]
        cause: serde_json::Error,
    },
    #[error("line {line}: the bytes of blob {blob} are not base64; the file is damaged")]
    NotBase64 {
        line: u64,
        blob: Digest,
        #[source]
        cause: base64::DecodeError,
    },
    #[error("line {line}: the bytes of blob {blob} have digest {found}; the file is damaged")]
    WrongDigest {
        line: u64,
        blob: Digest,
        found: Digest,
    },
    #[error(
        "line {line} says that the file holds {events} events, {blobs} blobs and {texts} texts, and it \
         holds {found_events}, {found_blobs} and {found_texts}; export the session again"
    )]
    Miscounted {
        line: u64,
        events: u64,
        blobs: u64,
        texts: u64,
        found_events: u64,
        found_blobs: u64,
        found_texts: u64,
    },
    #[error("line {line} stands behind the end of the export")]
    BehindTheEnd { line: u64 },
    #[error("the file is cut off behind line {line}; import the whole file to go on from there")]
    Truncated { line: u64 },
    /// The session has another origin and the import is strict, or the store failed.
    #[error("line {line}")]
    Store {
        line: u64,
        #[source]
        cause: StoreError,
    },
}

impl ImportError {
    /// The file is an export, or was one, and is not whole or not as it was written.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            // Nothing has shown so far that it ever was one.
            Self::NotJson { line, .. } => *line > 1,
            Self::NotAnExport { .. } | Self::OtherFormat { .. } | Self::Store { .. } => false,
            _ => true,
        }
    }
}

/// A line as it was understood.
enum Line {
    Header(Header),
    Event(Record),
    Text(Row),
    Blob {
        name: Digest,
        bytes: Option<Vec<u8>>,
    },
    End,
    Blank,
}

impl Importer {
    /// An import of one session. Where `strict`, one that is held under another origin, or as this
    /// store's own, is refused; else it is skipped.
    #[must_use]
    pub fn new(node: Arc<Node>, strict: bool) -> Self {
        Self::to(Target::Node(node), strict)
    }

    /// The same into a store that no node of this process stands on. `at` is the time of writing.
    #[must_use]
    pub fn into_store(store: Arc<dyn Store>, at: Millis, strict: bool) -> Self {
        Self::to(Target::Store(store, at), strict)
    }

    fn to(target: Target, strict: bool) -> Self {
        Self {
            target,
            strict,
            line: 0,
            header: None,
            page: Vec::new(),
            texts: Arc::default(),
            events: 0,
            blobs: 0,
            text_lines: 0,
            ended: false,
            so_far: Imported::default(),
        }
    }

    /// How far it got, after an error too.
    #[must_use]
    pub fn so_far(&self) -> &Imported {
        &self.so_far
    }

    /// Takes the next line, without its line break. An event that is refused is no error: it is named
    /// in [`Imported::refused`], those behind it are passed over and blobs are still taken.
    ///
    /// # Errors
    /// [`ImportError`]; the events before it are taken, and nothing more is to be fed.
    ///
    /// # Cancel safety
    /// Dropped midway, a page may be taken or not. Begin again with a new importer and the first line.
    pub async fn line(&mut self, line: &str) -> Result<(), ImportError> {
        self.line += 1;
        match self.understand(line) {
            Ok(Line::Header(header)) => {
                self.so_far.session = Some(header.session);
                self.header = Some(header);
                Ok(())
            }
            Ok(Line::Event(record)) => {
                self.events += 1;
                self.page.push((self.line, record));
                if self.page.len() < PAGE as usize {
                    return Ok(());
                }
                self.flush().await
            }
            Ok(Line::Text(row)) => {
                self.text_lines += 1;
                let texts = Arc::make_mut(&mut self.texts);
                match row {
                    Row::Item { item, n } => drop(texts.items.insert((item.seq, n), item)),
                    Row::Input { input } => drop(texts.inputs.insert(input.seq, input)),
                }
                Ok(())
            }
            Ok(Line::Blob { name, bytes }) => {
                self.flush().await?;
                self.blobs += 1;
                self.keep(&name, bytes).await
            }
            Ok(Line::End) => {
                self.ended = true;
                self.flush().await
            }
            Ok(Line::Blank) => Ok(()),
            Err(error) => {
                self.flush().await?;
                Err(error)
            }
        }
    }

    /// Ends the import, once there are no more lines.
    ///
    /// # Errors
    /// [`ImportError::Truncated`] if the end of the export was not among them.
    pub async fn finish(&mut self) -> Result<Imported, ImportError> {
        self.flush().await?;
        if !self.ended {
            return Err(ImportError::Truncated { line: self.line });
        }
        Ok(self.so_far.clone())
    }

    fn understand(&self, text: &str) -> Result<Line, ImportError> {
        let line = self.line;
        if text.trim().is_empty() {
            return Ok(Line::Blank);
        }
        if self.ended {
            return Err(ImportError::BehindTheEnd { line });
        }
        let value: Value =
            serde_json::from_str(text).map_err(|cause| ImportError::NotJson { line, cause })?;
        let malformed = |cause| ImportError::Malformed { line, cause };
        if self.header.is_none() {
            let format = value.get("mainstay_export").and_then(Value::as_u64);
            return match format {
                None => Err(ImportError::NotAnExport { line }),
                Some(FORMAT) => serde_json::from_value(value)
                    .map(Line::Header)
                    .map_err(malformed),
                Some(found) => Err(ImportError::OtherFormat { line, found }),
            };
        }
        if !value.is_object() {
            return Err(malformed(serde::de::Error::custom("it is no object")));
        }
        if value.get("blob").is_some() {
            let Blob { blob, base64 } = serde_json::from_value(value).map_err(malformed)?;
            return self.check(blob, base64);
        }
        if value.get("text").is_some() {
            return serde_json::from_value(value)
                .map(|Text { text }| Line::Text(text))
                .map_err(malformed);
        }
        if value.get("end").is_some() {
            let End {
                events,
                blobs,
                texts,
                ..
            } = serde_json::from_value(value).map_err(malformed)?;
            let said = self.header.as_ref().map_or(0, |header| header.events);
            let found = (self.events, self.blobs, self.text_lines);
            if (events, blobs, texts) != found || events != said {
                return Err(ImportError::Miscounted {
                    line,
                    events: events.max(said),
                    blobs,
                    texts,
                    found_events: self.events,
                    found_blobs: self.blobs,
                    found_texts: self.text_lines,
                });
            }
            return Ok(Line::End);
        }
        serde_json::from_value(value)
            .map(Line::Event)
            .map_err(malformed)
    }

    fn check(&self, blob: Digest, base64: Option<String>) -> Result<Line, ImportError> {
        let line = self.line;
        let Some(text) = base64 else {
            return Ok(Line::Blob {
                name: blob,
                bytes: None,
            });
        };
        let bytes = match STANDARD.decode(text) {
            Ok(bytes) => bytes,
            Err(cause) => return Err(ImportError::NotBase64 { line, blob, cause }),
        };
        let found = id::digest(&bytes);
        if found != blob {
            return Err(ImportError::WrongDigest { line, blob, found });
        }
        Ok(Line::Blob {
            name: blob,
            bytes: Some(bytes),
        })
    }

    /// Keeps a blob, unless its session was skipped.
    async fn keep(&mut self, name: &str, bytes: Option<Vec<u8>>) -> Result<(), ImportError> {
        if self.so_far.skipped > 0 {
            return Ok(());
        }
        let Some(bytes) = bytes else {
            self.so_far.missing_blobs += 1;
            return Ok(());
        };
        let kept = self.target.store().blob_put(name, &bytes).await;
        kept.map_err(|cause| ImportError::Store {
            line: self.line,
            cause,
        })?;
        self.so_far.blobs += 1;
        Ok(())
    }

    /// Has the events that were read taken.
    async fn flush(&mut self) -> Result<(), ImportError> {
        let Some(header) = &self.header else {
            return Ok(());
        };
        let (lines, records): (Vec<u64>, Vec<Record>) =
            std::mem::take(&mut self.page).into_iter().unzip();
        if records.is_empty() || self.so_far.refused.is_some() {
            return Ok(());
        }
        let replay = Replay {
            origin: header.origin.clone(),
            strict: self.strict,
            records,
            texts: Arc::clone(&self.texts),
        };
        let refusal = |taken: u64, cause| Refusal {
            line: lines.get(taken as usize).copied().unwrap_or(self.line),
            cause,
        };
        match self.target.replay(header.session, replay).await {
            Ok(page) => {
                let refused = page.refused;
                self.so_far.refused = refused.map(|cause| refusal(page.applied + page.held, cause));
                self.so_far.head = page.head;
                self.so_far.applied += page.applied;
                self.so_far.held += page.held;
                self.so_far.skipped += page.skipped;
                Ok(())
            }
            // Not even the first could be taken.
            Err(StoreError::Refused(Refused::Replay(cause))) => {
                self.so_far.refused = Some(refusal(0, cause));
                Ok(())
            }
            Err(cause) => Err(ImportError::Store {
                line: lines[0],
                cause,
            }),
        }
    }
}
