//! `mainstay session export` and `import`: a session as a file of JSON lines, and the way back.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt as _;
use mainstay_core::export::{self, ImportError, Imported, Importer};
use mainstay_core::id::SessionId;
use mainstay_core::port::{Clock as _, Store, SystemClock};
use tokio::io::AsyncBufReadExt as _;

use crate::access::{self, Context, Way};
use crate::error::{Code, Error, Result};
use crate::printer::tame;

pub(super) async fn export(context: &Context, id: SessionId, to: Option<PathBuf>) -> Result<()> {
    let mut out = Out::new(to)?;
    match context.way().await? {
        Way::Server(client) => {
            let mut answer = client.export(id).await?;
            while let Some(chunk) = answer.chunk().await.map_err(|error| broken(&error))? {
                out.write(&chunk)?;
            }
        }
        Way::File(paths) => {
            let store: Arc<dyn Store> = Arc::new(access::read(&paths).await?);
            let tail = store.tail(id).await?.ok_or_else(|| access::unknown(id))?;
            let origin = match tail.session.imported() {
                Some(origin) => origin.to_owned(),
                None => store.name().await?,
            };
            let mut lines = Box::pin(export::export(store, id, &origin));
            while let Some(line) = lines.next().await {
                out.write((line? + "\n").as_bytes())?;
            }
        }
    }
    out.finish()?;
    context.printer.note("exported");
    Ok(())
}

fn broken(error: &reqwest::Error) -> Error {
    Error::new(Code::Unavailable, "the export broke off").because(error)
}

/// Where an export goes. A file gets its name once it is whole.
enum Out {
    Standard(std::io::Stdout),
    File(tempfile::NamedTempFile, PathBuf),
}

impl Out {
    fn new(to: Option<PathBuf>) -> Result<Self> {
        let Some(to) = to else {
            return Ok(Self::Standard(std::io::stdout()));
        };
        let folder = match to.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let part =
            tempfile::NamedTempFile::new_in(folder).map_err(|error| unwritable(&to, &error))?;
        Ok(Self::File(part, to))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Standard(out) => match out.write_all(bytes) {
                // Who reads has enough.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                    std::process::exit(0)
                }
                done => done.map_err(|error| unwritable(Path::new("standard output"), &error)),
            },
            Self::File(part, to) => part
                .write_all(bytes)
                .map_err(|error| unwritable(to, &error)),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Standard(mut out) => {
                let _ = out.flush();
                Ok(())
            }
            Self::File(part, to) => {
                let synced = part.as_file().sync_all();
                synced.map_err(|error| unwritable(&to, &error))?;
                part.persist(&to)
                    .map(drop)
                    .map_err(|error| unwritable(&to, &error.error))
            }
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("cannot write {}", path.display())).because(error)
}

pub(super) async fn import(context: &Context, file: &Path, lenient: bool) -> Result<()> {
    let unreadable = |error: std::io::Error| Error::unreadable(file, &error);
    let refused = |error: ImportError| Error::from_import(file, error);
    let opened = tokio::fs::File::open(file).await.map_err(unreadable)?;
    let imported = match context.way().await? {
        Way::Server(client) => {
            let stream = tokio_util::io::ReaderStream::new(opened);
            client
                .import(reqwest::Body::wrap_stream(stream), lenient)
                .await?
        }
        Way::File(paths) => {
            paths.create()?;
            let options = mainstay_store::Options::default();
            let store = Arc::new(mainstay_store::SqliteStore::open(&paths.store, options).await?);
            let at = SystemClock::default().wall();
            let mut importer = Importer::into_store(Arc::clone(&store) as _, at, !lenient);
            let done = async {
                let mut lines = tokio::io::BufReader::new(opened).lines();
                while let Some(line) = lines.next_line().await.map_err(unreadable)? {
                    importer.line(&line).await.map_err(refused)?;
                }
                importer.finish().await.map_err(refused)
            }
            .await;
            store.close().await;
            done?
        }
    };
    tell(context, &imported)
}

fn tell(context: &Context, imported: &Imported) -> Result<()> {
    if context.printer.json {
        context.printer.value(imported)?;
    }
    if let Some(refusal) = &imported.refused {
        let message = format!("the import stopped behind seq {}", imported.head);
        return Err(Error::new(Code::Conflict, message)
            .because(refusal)
            .hint("what was taken stays; import a file that fits what is held"));
    }
    if !context.printer.json {
        let session = imported
            .session
            .map(|id| id.to_string())
            .unwrap_or_default();
        context.printer.note(format!(
            "{}: {} events are new, {} were held, {} skipped",
            tame(&session),
            imported.applied,
            imported.held,
            imported.skipped
        ));
        if imported.missing_blobs > 0 {
            context.printer.note(format!(
                "{} attachments were lost before the export",
                imported.missing_blobs
            ));
        }
    }
    Ok(())
}
