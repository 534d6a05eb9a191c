//! `mainstay backup`: copy the store while it is in use.

use std::path::Path;

use mainstay_store::BackupError;

use crate::access::{self, Context};
use crate::args::Backup;
use crate::error::{Code, Error, Result};
use crate::printer::size;

pub(crate) async fn backup(context: &Context, args: &Backup) -> Result<()> {
    let paths = context.store("backup")?;
    if paths.database.is_some() {
        return Err(Error::new(Code::Usage, "`backup` copies the file of one process, and a Postgres database is none")
            .hint("copy it with `pg_dump --format=custom`, which takes one snapshot beside its nodes, or by the \
                   server's own backups"));
    }
    let store = access::read(&paths).await?;
    context.printer.dim("copying …");
    let done = store.backup(&args.to, args.force).await;
    store.close().await;
    let copied = done.map_err(|error| failed(&args.to, &error))?;
    if context.printer.json {
        let value = serde_json::json!({
            "file": copied.file,
            "bytes": copied.bytes,
            "schema": copied.schema,
        });
        context.printer.value(&value)?;
    } else {
        let file = copied.file.display();
        context
            .printer
            .note(format!("copied {} to {file}", size(copied.bytes)));
    }
    Ok(())
}

fn failed(to: &Path, error: &BackupError) -> Error {
    let told = |code| Error {
        causes: {
            let mut causes = Error::failed("").because(error).causes;
            causes.remove(0);
            causes
        },
        ..Error::new(code, error.to_string())
    };
    match error {
        BackupError::Exists { .. } => {
            told(Code::Conflict).hint("name another file, or replace it with `--force`")
        }
        BackupError::Itself { .. } | BackupError::InUse { .. } => told(Code::Conflict),
        BackupError::Io { .. } => {
            let folder = to.parent().unwrap_or(Path::new("."));
            told(Code::Unavailable).hint(format!(
                "see whether {} can be written to and has room",
                folder.display()
            ))
        }
        BackupError::Sqlite { .. } => told(Code::Unavailable)
            .hint("see whether there is room for the copy; `mainstay doctor` examines the store"),
        BackupError::Broken { .. } => {
            told(Code::Damaged).hint("examine the store with `mainstay doctor`")
        }
    }
}
