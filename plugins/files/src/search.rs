//! Finding lines and files.

use mainstay_guest::toolbox::{CallError, Host, Workspace};
use mainstay_guest::workspace::EntryKind;
use serde::Deserialize;

use crate::{FILE_LIMIT, failed, join, path};

/// Results unless told otherwise.
const RESULTS: usize = 200;

/// Bytes of a line that are shown.
const LINE_LIMIT: usize = 400;

#[derive(Deserialize)]
pub(crate) struct Search {
    text: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    path: String,
    #[serde(default)]
    ignore_case: bool,
    limit: Option<usize>,
}

pub(crate) fn search(
    workspace: &dyn Workspace,
    host: &dyn Host,
    arguments: Search,
) -> Result<String, CallError> {
    let text = arguments.text.filter(|text| !text.is_empty());
    if text.is_none() && arguments.glob.is_none() {
        return Err(CallError::InvalidArguments(
            "`text` or `glob` is needed".to_owned(),
        ));
    }
    let needle = text.map(|text| fold(&text, arguments.ignore_case));
    let limit = arguments.limit.unwrap_or(RESULTS).clamp(1, 1000);
    let mut results = Vec::new();
    let mut folders = vec![path(&arguments.path)?];
    let mut seen = 0_u64;
    'search: while let Some(folder) = folders.pop() {
        if host.cancelled() {
            return Err(CallError::Cancelled("nothing was changed".to_owned()));
        }
        let mut below = Vec::new();
        // Files of a folder before the folders in it.
        for entry in workspace.list(&folder).map_err(failed)? {
            let path = join(&folder, &entry.name);
            match entry.kind {
                EntryKind::Folder => below.push(path),
                EntryKind::Other => {}
                EntryKind::File => {
                    seen += 1;
                    if seen.is_multiple_of(100) {
                        host.progress(&format!("{seen} files searched"));
                        if host.cancelled() {
                            return Err(CallError::Cancelled("nothing was changed".to_owned()));
                        }
                    }
                    let matches = arguments
                        .glob
                        .as_ref()
                        .is_none_or(|glob| path_matches(glob, &path));
                    if !matches {
                        continue;
                    }
                    match &needle {
                        None => results.push(path),
                        Some(needle) if entry.size <= FILE_LIMIT => {
                            lines(
                                workspace,
                                &path,
                                needle,
                                arguments.ignore_case,
                                limit + 1,
                                &mut results,
                            );
                        }
                        Some(_) => {}
                    }
                    if results.len() > limit {
                        break 'search;
                    }
                }
            }
        }
        below.reverse();
        folders.extend(below);
    }
    if results.is_empty() {
        return Ok("[nothing found]".to_owned());
    }
    if results.len() > limit {
        results.truncate(limit);
        results.push(format!("[cut after {limit} results]"));
    }
    Ok(results.join("\n"))
}

/// Adds the lines of a file that contain the needle. A file that is no text has none.
fn lines(
    workspace: &dyn Workspace,
    path: &str,
    needle: &str,
    ignore_case: bool,
    limit: usize,
    results: &mut Vec<String>,
) {
    let Some(text) = workspace
        .read(path, FILE_LIMIT)
        .ok()
        .and_then(|data| String::from_utf8(data).ok())
    else {
        return;
    };
    for (number, line) in text.lines().enumerate() {
        if results.len() >= limit {
            return;
        }
        if fold(line, ignore_case).contains(needle) {
            let shown = &line[..line.floor_char_boundary(LINE_LIMIT)];
            results.push(format!("{path}:{}: {shown}", number + 1));
        }
    }
}

fn fold(text: &str, ignore_case: bool) -> String {
    if ignore_case {
        text.to_lowercase()
    } else {
        text.to_owned()
    }
}

/// Whether a path matches a pattern; one without a slash is matched against the last name.
fn path_matches(glob: &str, path: &str) -> bool {
    if glob.contains('/') {
        let glob: Vec<&str> = glob.split('/').filter(|name| !name.is_empty()).collect();
        let path: Vec<&str> = path.split('/').collect();
        names_match(&glob, &path)
    } else {
        name_matches(glob, path.rsplit('/').next().unwrap_or(path))
    }
}

fn names_match(glob: &[&str], path: &[&str]) -> bool {
    match (glob.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skip| names_match(rest, &path[skip..])),
        (Some((glob, more)), Some((name, below))) => {
            name_matches(glob, name) && names_match(more, below)
        }
        _ => false,
    }
}

/// Matches one name: `*` is any text, `?` one character. Goes back to the last star only, so the time
/// is at most the product of the two lengths.
fn name_matches(glob: &str, name: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut g, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == name[n] => {
                g += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    g = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|&left| left == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (glob, path, expected) in [
            ("*.rs", "src/deep/x.rs", true),
            ("*.rs", "src/x.rst", false),
            ("src/*.rs", "src/x.rs", true),
            ("src/*.rs", "src/deep/x.rs", false),
            ("src/**/*.rs", "src/deep/er/x.rs", true),
            ("src/**/*.rs", "src/x.rs", true),
            ("**/x.?s", "x.rs", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(path_matches(glob, path), expected, "{glob} {path}");
        }
    }
}
