//! The session's files, as a toolbox reaches them.
//!
//! In WebAssembly they are the preopened folder `/workspace` of `wasi:filesystem`, bound to explicitly
//! and only by a toolbox that asks a [`Host`](crate::toolbox::Host) for its workspace. For tests they
//! are [`testing::Files`](crate::testing::Files).

use std::fmt;

/// Files under one folder. Paths are relative to it, with `/` between their names; links that lead out
/// of it do not open.
pub trait Workspace {
    /// What a folder holds, sorted by name. The empty path is the workspace itself.
    ///
    /// # Errors
    ///
    /// There is no such folder, or it cannot be read.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error>;

    /// What is at a path, following links; `None` where nothing is.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    fn stat(&self, path: &str) -> Result<Option<Entry>, Error>;

    /// Bytes of a file from `offset`, at most `length` of them. Empty at its end.
    ///
    /// # Errors
    ///
    /// There is no such file, or it cannot be read.
    fn read_at(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, Error>;

    /// Replaces a file whole, or makes it, with the folders above it. It never holds half of `data`,
    /// whatever happens meanwhile.
    ///
    /// # Errors
    ///
    /// It cannot be written. Folders may have been made.
    fn write(&self, path: &str, data: &[u8]) -> Result<(), Error>;

    /// A whole file.
    ///
    /// # Errors
    ///
    /// There is no such file, it cannot be read, or it is larger than `limit`.
    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut data = Vec::new();
        loop {
            let more = self.read_at(path, data.len() as u64, READ)?;
            if more.is_empty() {
                return Ok(data);
            }
            data.extend(more);
            if data.len() as u64 > limit {
                return Err(Error::TooLarge {
                    path: path.to_owned(),
                    limit,
                });
            }
        }
    }
}

/// Bytes to read at once.
const READ: u64 = 256 * 1024;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the folder.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes of a file; 0 for all else.
    pub size: u64,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A link, a device, ...
    Other,
}

/// Why a file could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing is at the path.
    NotFound(String),
    /// The path leads out of the workspace, or the workspace may not be written to.
    Denied(String),
    /// It is larger than allowed.
    TooLarge {
        /// The path.
        path: String,
        /// Bytes.
        limit: u64,
    },
    /// Anything else.
    Failed {
        /// The path.
        path: String,
        /// What the file system says.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(path) => write!(f, "`{path}` does not exist"),
            Self::Denied(path) => write!(f, "`{path}` is not allowed"),
            Self::TooLarge { path, limit } => write!(f, "`{path}` is larger than {limit} bytes"),
            Self::Failed { path, reason } => write!(f, "`{path}`: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// Brings a path into the form that [`Workspace`] takes: no `.`, no doubled or last slash. Refuses
/// what is absolute or goes up.
///
/// # Errors
///
/// [`Error::Denied`].
pub fn normalise(path: &str) -> Result<String, Error> {
    let denied = || Error::Denied(path.to_owned());
    let drive = path.as_bytes().get(1) == Some(&b':');
    if path.starts_with('/') || drive || path.contains(['\\', '\0']) {
        return Err(denied());
    }
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => return Err(denied()),
            name => names.push(name),
        }
    }
    Ok(names.join("/"))
}

/// The granted workspace, if there is one.
#[cfg(target_arch = "wasm32")]
pub(crate) fn granted() -> Option<Box<dyn Workspace>> {
    wasi::Folder::preopened("/workspace").map(|folder| Box::new(folder) as Box<dyn Workspace>)
}

#[cfg(target_arch = "wasm32")]
mod wasi {
    use super::{Entry, EntryKind, Error, Workspace};
    use crate::bindings::wasi::wasi::filesystem::preopens;
    use crate::bindings::wasi::wasi::filesystem::types::{
        Descriptor, DescriptorFlags, DescriptorType, ErrorCode, OpenFlags, PathFlags,
    };

    /// A preopened folder.
    pub(super) struct Folder(Descriptor);

    impl Folder {
        pub(super) fn preopened(path: &str) -> Option<Self> {
            preopens::get_directories()
                .into_iter()
                .find(|(_, name)| name == path)
                .map(|(folder, _)| Self(folder))
        }

        fn open(
            &self,
            path: &str,
            open: OpenFlags,
            flags: DescriptorFlags,
        ) -> Result<Descriptor, Error> {
            // An empty path does not open; the folder itself is `.`.
            let name = if path.is_empty() { "." } else { path };
            self.0
                .open_at(PathFlags::SYMLINK_FOLLOW, name, open, flags)
                .map_err(|code| error(path, code))
        }

        /// Makes the folders above a path.
        fn make_parents(&self, path: &str) -> Result<(), Error> {
            for (end, _) in path.match_indices('/') {
                match self.0.create_directory_at(&path[..end]) {
                    Ok(()) | Err(ErrorCode::Exist) => {}
                    Err(code) => return Err(error(&path[..end], code)),
                }
            }
            Ok(())
        }
    }

    impl Workspace for Folder {
        fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
            let opened = self.open(folder, OpenFlags::DIRECTORY, DescriptorFlags::READ)?;
            let stream = opened
                .read_directory()
                .map_err(|code| error(folder, code))?;
            let mut entries = Vec::new();
            while let Some(found) = stream
                .read_directory_entry()
                .map_err(|code| error(folder, code))?
            {
                let kind = kind(found.type_);
                let size = match kind {
                    EntryKind::File => opened
                        .stat_at(PathFlags::empty(), &found.name)
                        .map_or(0, |stat| stat.size),
                    _ => 0,
                };
                entries.push(Entry {
                    name: found.name,
                    kind,
                    size,
                });
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        }

        fn stat(&self, path: &str) -> Result<Option<Entry>, Error> {
            let name = if path.is_empty() { "." } else { path };
            match self.0.stat_at(PathFlags::SYMLINK_FOLLOW, name) {
                Ok(stat) => Ok(Some(Entry {
                    name: path.rsplit('/').next().unwrap_or(path).to_owned(),
                    kind: kind(stat.type_),
                    size: match kind(stat.type_) {
                        EntryKind::File => stat.size,
                        _ => 0,
                    },
                })),
                Err(ErrorCode::NoEntry | ErrorCode::NotDirectory) => Ok(None),
                Err(code) => Err(error(path, code)),
            }
        }

        fn read_at(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
            let file = self.open(path, OpenFlags::empty(), DescriptorFlags::READ)?;
            let mut data = Vec::new();
            loop {
                let left = length - data.len() as u64;
                if left == 0 {
                    return Ok(data);
                }
                let (more, end) = file
                    .read(left, offset + data.len() as u64)
                    .map_err(|code| error(path, code))?;
                let none = more.is_empty();
                data.extend(more);
                if end || none {
                    return Ok(data);
                }
            }
        }

        fn write(&self, path: &str, data: &[u8]) -> Result<(), Error> {
            self.make_parents(path)?;
            // Written beside its place and moved there, so that a stop in between leaves the old file.
            // The name is the same at every try: what an earlier one left is overwritten.
            let (folder, name) = path.rsplit_once('/').map_or(("", path), |pair| pair);
            let slash = if folder.is_empty() { "" } else { "/" };
            let draft = format!("{folder}{slash}.{name}.mainstay-draft");
            let file = self.open(
                &draft,
                OpenFlags::CREATE | OpenFlags::TRUNCATE,
                DescriptorFlags::WRITE,
            )?;
            let mut written = 0;
            while written < data.len() {
                let end = data.len().min(written + super::READ as usize);
                let count = file
                    .write(&data[written..end], written as u64)
                    .map_err(|code| error(path, code))?;
                written += count as usize;
            }
            file.sync().map_err(|code| error(path, code))?;
            drop(file);
            self.0.rename_at(&draft, &self.0, path).map_err(|code| {
                let _ = self.0.unlink_file_at(&draft);
                error(path, code)
            })
        }
    }

    fn kind(kind: DescriptorType) -> EntryKind {
        match kind {
            DescriptorType::RegularFile => EntryKind::File,
            DescriptorType::Directory => EntryKind::Folder,
            _ => EntryKind::Other,
        }
    }

    fn error(path: &str, code: ErrorCode) -> Error {
        match code {
            ErrorCode::NoEntry => Error::NotFound(path.to_owned()),
            ErrorCode::NotPermitted | ErrorCode::Access | ErrorCode::ReadOnly => {
                Error::Denied(path.to_owned())
            }
            code => Error::Failed {
                path: path.to_owned(),
                reason: code.message().to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, expected) in [
            ("", Some("")),
            (".", Some("")),
            ("a//b/./c/", Some("a/b/c")),
            ("a..b", Some("a..b")),
            ("..", None),
            ("a/../b", None),
            ("/a", None),
            ("c:/a", None),
            ("a\\b", None),
            ("a\0", None),
        ] {
            assert_eq!(normalise(path).ok().as_deref(), expected, "{path}");
        }
    }
}
