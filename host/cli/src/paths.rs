//! Where things are on this machine.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};

/// Name of a configuration file.
pub(crate) const CONFIG: &str = "mainstay.toml";

/// A store as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    File(PathBuf),
    /// Its URL.
    Database(String),
}

impl Named {
    /// # Errors
    /// What looks like a URL and leads to no store.
    pub(crate) fn new(name: &Path) -> Result<Self> {
        let Some((scheme, rest)) = name.to_str().and_then(|name| name.split_once(':')) else {
            return Ok(Self::File(name.to_owned()));
        };
        let known = scheme.to_ascii_lowercase();
        let authority = rest.strip_prefix("//");
        match (known.as_str(), authority) {
            ("postgres" | "postgresql", Some(rest)) => {
                Ok(Self::Database(format!("{known}://{rest}")))
            }
            // As URLs of SQLite are often written: `sqlite:///var/lib/x.db`, `sqlite://x.db`.
            ("sqlite", _) => Ok(Self::File(authority.unwrap_or(rest).into())),
            (known, authority) if authority.is_some() || known.starts_with("postgres") => {
                // The rest may hold a password.
                Err(Error::new(
                    Code::Usage,
                    format!("a store is a file or a Postgres database, not `{scheme}:…`"),
                )
                .hint("write a file's path, `sqlite:FILE` or `postgres://USER@HOST/DATABASE`"))
            }
            _ => Ok(Self::File(name.to_owned())),
        }
    }
}

/// The files of one store.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) store: PathBuf,
    /// The database of several nodes, in place of the file.
    pub(crate) database: Option<String>,
    /// One folder a session.
    pub(crate) workspaces: PathBuf,
    /// Compiled components.
    pub(crate) cache: PathBuf,
}

impl Paths {
    /// For the named file, or the user's own.
    pub(crate) fn new(store: Option<&Path>) -> Result<Self> {
        let named = store.map(Named::new).transpose()?;
        let (store, database) = match named {
            Some(Named::Database(url)) => (data()?.join("postgres.db"), Some(url)),
            Some(Named::File(store)) => (store, None),
            None => (data()?.join("mainstay.db"), None),
        };
        let folder = match store.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self {
            store,
            database,
            workspaces: folder.join("workspaces"),
            cache: folder.join("cache"),
        })
    }

    /// Makes the folders that a writer needs.
    pub(crate) fn create(&self) -> Result<()> {
        let folder = self
            .store
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        for folder in folder.into_iter().chain([&*self.workspaces, &*self.cache]) {
            std::fs::create_dir_all(folder).map_err(|error| {
                Error::new(
                    Code::Unavailable,
                    format!("cannot create the folder {}", folder.display()),
                )
                .because(&error)
                .hint("name another place with `--store FILE`")
            })?;
        }
        Ok(())
    }
}

/// The user's data folder for us.
fn data() -> Result<PathBuf> {
    folder("XDG_DATA_HOME", ".local/share")
        .map(|data| data.join("mainstay"))
        .ok_or_else(|| {
            Error::new(
                Code::Config,
                "cannot tell where to keep the store: neither XDG_DATA_HOME nor HOME is set",
            )
            .hint("name a file with `--store FILE`")
        })
}

/// The configuration file that applies: the nearest one upward from here, else the user's.
pub(crate) fn config() -> Option<PathBuf> {
    let here = env::current_dir().ok();
    let upward = here
        .as_deref()
        .into_iter()
        .flat_map(Path::ancestors)
        .map(|folder| folder.join(CONFIG));
    let user =
        folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("mainstay").join(CONFIG));
    upward.chain(user).find(|file| file.is_file())
}

fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    set(variable).or_else(|| set("HOME").map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_file_or_a_database_and_no_mistyped_url() {
        let file = |path: &str| Named::File(path.into());
        let database = |url: &str| Named::Database(url.into());
        for (name, wanted) in [
            ("a/b.db", file("a/b.db")),
            ("a:b.db", file("a:b.db")),
            ("sqlite:a/b.db", file("a/b.db")),
            ("sqlite:///a/b.db", file("/a/b.db")),
            ("sqlite:/a/b.db", file("/a/b.db")),
            ("postgres://u@h/d", database("postgres://u@h/d")),
            ("POSTGRES://u@h/D", database("postgres://u@h/D")),
            ("postgresql://u@h/d", database("postgresql://u@h/d")),
        ] {
            assert_eq!(Named::new(Path::new(name)).unwrap(), wanted, "{name}");
        }
        for name in [
            "postgres:/u:secret@h",
            "mysql://u:secret@h/d",
            "http://secret",
        ] {
            let error = Named::new(Path::new(name)).unwrap_err();
            assert_eq!(error.code, Code::Usage, "{name}");
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
    }
}
