//! Where things are on this machine.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};

/// Name of a configuration file.
pub(crate) const CONFIG: &str = "mainstay.toml";

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
        let database = store
            .and_then(Path::to_str)
            .filter(|name| name.starts_with("postgres://") || name.starts_with("postgresql://"))
            .map(str::to_owned);
        let store = match store {
            Some(_) if database.is_some() => data()?.join("postgres.db"),
            Some(store) => store.to_owned(),
            None => data()?.join("mainstay.db"),
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
