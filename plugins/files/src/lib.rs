//! The toolbox `files`: the files of a session's workspace.
//!
//! Paths are relative to the workspace. Absolute ones and `..` are refused here, links that lead out
//! of it by WASI.
//!
//! `file_write` and `file_edit` are idempotent. A write puts a whole file in its place, so a second
//! one changes nothing. An edit replaces one text by another where it stands exactly once, and is
//! made only if it can be told from the file alone whether it was made: the old text must be gone
//! afterwards, except within the new one. A run after a crash then finds the edit made, and says so,
//! or makes it.

use mainstay_guest::Toolbox;
use mainstay_guest::manifest;
use mainstay_guest::toolbox::{
    CallError, CallRequest, Effect, Host, Output, Tool, ToolboxManifest, Workspace, WorkspaceAccess,
};
use mainstay_guest::workspace::{EntryKind, Error, normalise};
use serde::Deserialize;

mod edit;
mod search;

/// The largest file that is read.
const FILE_LIMIT: u64 = 16 * 1024 * 1024;

/// Lines that a read gives unless told otherwise.
const LINES: usize = 1000;

/// Bytes of text that a read gives at most.
const READ_LIMIT: usize = 256 * 1024;

/// Entries that a listing gives at most.
const ENTRIES: usize = 1000;

struct Files;

mainstay_guest::toolbox!(Files);

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize)]
struct Read {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct Write {
    path: String,
    content: String,
}

#[derive(Deserialize)]
struct Edit {
    path: String,
    old: String,
    new: String,
}

impl Toolbox for Files {
    const FILES: bool = true;

    fn manifest() -> ToolboxManifest {
        let mut manifest = manifest::toolbox(
            "files",
            env!("CARGO_PKG_VERSION"),
            "Reads, searches, writes and edits the files of the workspace",
        );
        manifest.workspace = WorkspaceAccess::ReadWrite;
        manifest
    }

    fn tools(_: Option<&str>) -> Result<Vec<Tool>, String> {
        Ok(vec![
            Tool::new(
                "file_list",
                Effect::Pure,
                "Lists a folder of the workspace. Folders end with a slash, files show their size in bytes.",
                r#"{"type":"object","properties":{"path":{"type":"string","description":"Folder, relative to the workspace. Without it, the workspace itself."},"recursive":{"type":"boolean","description":"Also list all folders below it."}},"additionalProperties":false}"#,
            ),
            Tool::new(
                "file_read",
                Effect::Pure,
                "Reads a text file of the workspace, by lines.",
                r#"{"type":"object","properties":{"path":{"type":"string","description":"File, relative to the workspace."},"offset":{"type":"integer","minimum":1,"description":"First line to read, from 1."},"limit":{"type":"integer","minimum":1,"description":"Most lines to read; 1000 without it."}},"required":["path"],"additionalProperties":false}"#,
            ),
            Tool::new(
                "file_search",
                Effect::Pure,
                "Finds lines that contain a text in the files of the workspace, or files whose path matches a pattern, or both.",
                r#"{"type":"object","properties":{"text":{"type":"string","description":"Text to find, as it is. Without it, paths of files are listed."},"glob":{"type":"string","description":"Only files whose path matches. * is any part of a name, ** any folders, ? one character. A pattern without a slash is matched against the file's name."},"path":{"type":"string","description":"Folder to search in; the workspace without it."},"ignore_case":{"type":"boolean"},"limit":{"type":"integer","minimum":1,"maximum":1000,"description":"Most results; 200 without it."}},"additionalProperties":false}"#,
            ),
            Tool::new(
                "file_write",
                Effect::Idempotent,
                "Writes a whole file of the workspace, replacing it if it exists. Folders above it are made.",
                r#"{"type":"object","properties":{"path":{"type":"string","description":"File, relative to the workspace."},"content":{"type":"string"}},"required":["path","content"],"additionalProperties":false}"#,
            ),
            Tool::new(
                "file_edit",
                Effect::Idempotent,
                "Replaces a text that stands exactly once in a file of the workspace by another. Take enough of the surrounding text that it is the only one.",
                r#"{"type":"object","properties":{"path":{"type":"string","description":"File, relative to the workspace."},"old":{"type":"string","minLength":1,"description":"The text to replace, exactly as it is in the file."},"new":{"type":"string","description":"What to put in its place."}},"required":["path","old","new"],"additionalProperties":false}"#,
            ),
        ])
    }

    fn call(call: &CallRequest, host: &dyn Host) -> Result<Vec<Output>, CallError> {
        let Some(workspace) = host.workspace() else {
            return Err(CallError::Denied(
                "this session has no workspace".to_owned(),
            ));
        };
        let workspace = workspace.as_ref();
        let text = match call.tool.as_str() {
            "file_list" => list(workspace, call.arguments()?)?,
            "file_read" => read(workspace, call.arguments()?)?,
            "file_search" => search::search(workspace, host, call.arguments()?)?,
            "file_write" => write(workspace, call.arguments()?)?,
            "file_edit" => edit(workspace, call.arguments()?, call.earlier_runs > 0)?,
            _ => return Err(call.unknown_tool()),
        };
        Ok(Output::text(text))
    }
}

/// A path as the workspace takes it.
fn path(path: &str) -> Result<String, CallError> {
    normalise(path).map_err(|_| {
        CallError::InvalidArguments(format!(
            "`{path}` is not a path inside the workspace: it must be relative and without `..`"
        ))
    })
}

/// A path that names a file.
fn file_path(file: &str) -> Result<String, CallError> {
    match path(file)? {
        empty if empty.is_empty() => Err(CallError::InvalidArguments(
            "the path of a file is needed".to_owned(),
        )),
        path => Ok(path),
    }
}

fn failed(error: Error) -> CallError {
    match error {
        Error::Denied(path) => CallError::Denied(format!("`{path}` may not be used")),
        error => CallError::Failed(error.to_string()),
    }
}

fn list(workspace: &dyn Workspace, arguments: List) -> Result<String, CallError> {
    let folder = path(&arguments.path)?;
    let mut lines = Vec::new();
    let mut cut = false;
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let mut below = Vec::new();
        for entry in workspace.list(&folder).map_err(failed)? {
            if lines.len() == ENTRIES {
                cut = true;
                break;
            }
            let path = join(&folder, &entry.name);
            lines.push(match entry.kind {
                EntryKind::File => format!("{path} ({} bytes)", entry.size),
                EntryKind::Folder => format!("{path}/"),
                EntryKind::Other => format!("{path} (neither file nor folder)"),
            });
            if arguments.recursive && entry.kind == EntryKind::Folder {
                below.push(path);
            }
        }
        below.reverse();
        folders.extend(below);
    }
    if cut {
        lines.push(format!("[cut after {ENTRIES} entries]"));
    }
    if lines.is_empty() {
        return Ok("[empty]".to_owned());
    }
    Ok(lines.join("\n"))
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

/// A whole file as text.
fn text(workspace: &dyn Workspace, path: &str) -> Result<String, CallError> {
    let data = workspace.read(path, FILE_LIMIT).map_err(failed)?;
    String::from_utf8(data).map_err(|_| CallError::Failed(format!("`{path}` is no UTF-8 text")))
}

fn read(workspace: &dyn Workspace, arguments: Read) -> Result<String, CallError> {
    let path = file_path(&arguments.path)?;
    let text = text(workspace, &path)?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let first = arguments.offset.unwrap_or(1).max(1);
    if first > lines.len() {
        return if text.is_empty() {
            Ok("[empty]".to_owned())
        } else {
            Err(CallError::InvalidArguments(format!(
                "`{path}` has {} lines",
                lines.len()
            )))
        };
    }
    let wanted = arguments.limit.unwrap_or(LINES);
    let mut result = String::new();
    let mut last = first - 1;
    for line in lines.iter().skip(first - 1).take(wanted) {
        if result.len() + line.len() > READ_LIMIT {
            break;
        }
        result.push_str(line);
        last += 1;
    }
    if last < first {
        // One line that is too long by itself.
        let line = lines[first - 1];
        result.push_str(&line[..line.floor_char_boundary(READ_LIMIT)]);
        result.push_str("\n[the line is cut]\n");
        last = first;
    }
    if last < lines.len() {
        if !result.ends_with('\n') {
            result.push('\n');
        }
        result.push_str(&format!(
            "[lines {first} to {last} of {}; read on with offset {}]",
            lines.len(),
            last + 1
        ));
    }
    Ok(result)
}

fn write(workspace: &dyn Workspace, arguments: Write) -> Result<String, CallError> {
    let path = file_path(&arguments.path)?;
    workspace
        .write(&path, arguments.content.as_bytes())
        .map_err(failed)?;
    Ok(format!(
        "Wrote {} bytes to `{path}`.",
        arguments.content.len()
    ))
}

fn edit(workspace: &dyn Workspace, arguments: Edit, again: bool) -> Result<String, CallError> {
    let path = file_path(&arguments.path)?;
    let before = text(workspace, &path)?;
    let done = format!("Edited `{path}`.");
    match edit::apply(&before, &arguments.old, &arguments.new, again) {
        Ok(edit::Outcome::Made(after)) => {
            workspace.write(&path, after.as_bytes()).map_err(failed)?;
            Ok(done)
        }
        Ok(edit::Outcome::AlreadyMade) => Ok(done),
        Err(refusal) => Err(CallError::Failed(format!(
            "Nothing was changed in `{path}`: {refusal}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::testing::{self, Files as Memory, Host};

    use super::*;

    fn run(host: &Host, tool: &str, arguments: &str) -> Result<String, CallError> {
        run_again(host, tool, arguments, 0)
    }

    fn run_again(
        host: &Host,
        tool: &str,
        arguments: &str,
        earlier_runs: u32,
    ) -> Result<String, CallError> {
        let mut call = testing::call(tool, Effect::Idempotent, arguments);
        call.earlier_runs = earlier_runs;
        match Files::call(&call, host)?.remove(0) {
            Output::Text(text) => Ok(text),
            Output::Media(_) => panic!("these tools give text"),
        }
    }

    fn host() -> Host {
        Host::new().with_files(Memory::new(&[
            ("a.txt", "one\ntwo\nthree\n"),
            ("src/main.rs", "fn main() {}\n"),
            ("src/deep/x.rs", "// Main\n"),
        ]))
    }

    #[test]
    fn lists_a_folder_and_everything_below() {
        assert_eq!(
            run(&host(), "file_list", "{}").unwrap(),
            "a.txt (14 bytes)\nsrc/"
        );
        assert_eq!(
            run(
                &host(),
                "file_list",
                r#"{"path":"./src/","recursive":true}"#
            )
            .unwrap(),
            "src/deep/\nsrc/main.rs (13 bytes)\nsrc/deep/x.rs (8 bytes)"
        );
    }

    #[test]
    fn reads_by_lines() {
        assert_eq!(
            run(&host(), "file_read", r#"{"path":"a.txt"}"#).unwrap(),
            "one\ntwo\nthree\n"
        );
        assert_eq!(
            run(
                &host(),
                "file_read",
                r#"{"path":"a.txt","offset":2,"limit":1}"#
            )
            .unwrap(),
            "two\n[lines 2 to 2 of 3; read on with offset 3]"
        );
        assert!(run(&host(), "file_read", r#"{"path":"nope"}"#).is_err());
    }

    #[test]
    fn refuses_to_leave_the_workspace() {
        for path in ["/etc/passwd", "../x", "a/../../x", "c:\\\\x"] {
            let arguments = format!(r#"{{"path":"{path}"}}"#);
            assert!(
                matches!(
                    run(&host(), "file_read", &arguments),
                    Err(CallError::InvalidArguments(_))
                ),
                "{path}"
            );
        }
        assert!(matches!(
            run(&Host::new(), "file_list", "{}"),
            Err(CallError::Denied(_))
        ));
    }

    #[test]
    fn writing_twice_is_writing_once() {
        let host = host();
        let arguments = r#"{"path":"new/b.txt","content":"hi"}"#;
        let first = run(&host, "file_write", arguments).unwrap();
        assert_eq!(run_again(&host, "file_write", arguments, 1).unwrap(), first);
        assert_eq!(
            host.files().unwrap().text("new/b.txt").as_deref(),
            Some("hi")
        );
    }

    #[test]
    fn editing_twice_is_editing_once() {
        for (old, new) in [("two", "2"), ("two", "two and a half"), ("two\n", "")] {
            let host = host();
            let arguments =
                serde_json::json!({"path": "a.txt", "old": old, "new": new}).to_string();
            let first = run(&host, "file_edit", &arguments).unwrap();
            let once = host.files().unwrap().text("a.txt").unwrap();
            assert_eq!(run_again(&host, "file_edit", &arguments, 1).unwrap(), first);
            assert_eq!(host.files().unwrap().text("a.txt").unwrap(), once, "{new}");
        }
    }

    #[test]
    fn searches_text_and_names() {
        assert_eq!(
            run(
                &host(),
                "file_search",
                r#"{"text":"main","ignore_case":true}"#
            )
            .unwrap(),
            "src/main.rs:1: fn main() {}\nsrc/deep/x.rs:1: // Main"
        );
        assert_eq!(
            run(&host(), "file_search", r#"{"glob":"src/*.rs"}"#).unwrap(),
            "src/main.rs"
        );
        assert_eq!(
            run(&host(), "file_search", r#"{"text":"absent"}"#).unwrap(),
            "[nothing found]"
        );
        let host = host().cancelled_after(0);
        assert!(matches!(
            run(&host, "file_search", r#"{"text":"main"}"#),
            Err(CallError::Cancelled(_))
        ));
    }
}
