//! `mainstay plugin test`: recorded sessions against a runner that is being worked on.

use std::path::PathBuf;

use super::author::{beside, component};
use crate::access::Context;
use crate::args::Replay;
use crate::args::author::Test;
use crate::command::replay::replay;
use crate::error::{Code, Error, Result};

pub(super) async fn test(context: &Context, args: Test) -> Result<()> {
    let file = component(&args.plugin)?;
    let sessions = if args.sessions.is_empty() {
        let folder = beside(&file).join("sessions");
        let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        found.retain(|path| path.is_file());
        found.sort();
        if found.is_empty() {
            return Err(Error::new(
                Code::NotFound,
                format!("there are no recorded sessions in {}", folder.display()),
            )
            .hint("record one with `mainstay session export ID --to FILE`, and name the file"));
        }
        found
    } else {
        args.sessions
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let args = Replay {
        sessions: sessions.into_iter().map(text).collect(),
        runner: text(file),
        own: !args.all,
    };
    replay(context, args).await
}
