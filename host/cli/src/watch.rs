//! A folder of plugins that is watched: a file `NAME.wasm` in it is the plugin `NAME`, from when it
//! appears or changes. The folder is looked at once a second, by size and time of change. The system's
//! own notices would come sooner by less than a component takes to compile, and not at all from shared
//! folders, network mounts and the like.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use mainstay_core::chain;
use tracing::{error, info, warn};

use crate::plugins::Plugins;

/// How often the folder is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What a file looks like from outside. One that looks the same is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    bytes: u64,
    changed: Option<SystemTime>,
}

/// The folder and what was last seen in it.
#[derive(Debug)]
pub(crate) struct Watch {
    folder: PathBuf,
    seen: BTreeMap<PathBuf, Seen>,
    /// It could not be read, and that was reported.
    unreadable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    look: Look,
    /// It was loaded, or refused, as it looks now.
    settled: bool,
}

impl Watch {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            seen: BTreeMap::new(),
            unreadable: false,
        }
    }

    /// Loads all files that are there, and waits for none that may still be written.
    pub(crate) async fn start(&mut self, plugins: &Plugins) {
        self.due();
        for file in self.due() {
            load(plugins, &file).await;
        }
    }

    /// Follows the folder for ever.
    pub(crate) async fn follow(mut self, plugins: Arc<Plugins>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for file in self.due() {
                load(&plugins, &file).await;
            }
        }
    }

    /// Looks at the folder: files that are new or have changed, and have looked the same twice, so that
    /// nobody is writing them. Each is due once.
    fn due(&mut self) -> Vec<PathBuf> {
        let found = match looks(&self.folder) {
            Ok(found) => found,
            Err(error) => {
                if !self.unreadable {
                    let folder = self.folder.display();
                    warn!(%folder, %error, "the folder of plugins cannot be read");
                }
                self.unreadable = true;
                return Vec::new();
            }
        };
        self.unreadable = false;
        let mut due = Vec::new();
        let mut seen = BTreeMap::new();
        for (file, look) in found {
            let last = self.seen.get(&file).filter(|last| last.look == look);
            if last.is_some_and(|last| !last.settled) {
                due.push(file.clone());
            }
            let settled = last.is_some();
            seen.insert(file, Seen { look, settled });
        }
        // A file that is gone is forgotten; its name stays until it is removed by hand.
        self.seen = seen;
        due
    }
}

/// The components in a folder.
fn looks(folder: &Path) -> io::Result<BTreeMap<PathBuf, Look>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("wasm")) {
            continue;
        }
        // One that has gone in between is not there.
        let Ok(meta) = fs::metadata(&path) else {
            continue;
        };
        if meta.is_file() {
            let look = Look {
                bytes: meta.len(),
                changed: meta.modified().ok(),
            };
            found.insert(path, look);
        }
    }
    Ok(found)
}

/// Points the file's name at its bytes. A file that is no plugin changes nothing and is reported.
async fn load(plugins: &Plugins, file: &Path) {
    let alias = file.file_stem().unwrap_or_default().to_string_lossy();
    let shown = file.display();
    match plugins.load_file(&alias, file).await {
        Ok(()) => {
            info!(plugin = %alias, file = %shown, "the plugin of the watched folder is loaded")
        }
        Err(error) => error!(
            plugin = %alias,
            file = %shown,
            error = chain(&error),
            "a file of the watched folder is not loaded; its name leads to where it led before"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_due_once_it_has_looked_the_same_twice_and_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.wasm");
        let mut watch = Watch::new(folder.path().to_owned());
        fs::write(folder.path().join("one.txt"), "text").unwrap();
        fs::create_dir(folder.path().join("folder.wasm")).unwrap();
        assert!(watch.due().is_empty());
        let none: Vec<PathBuf> = Vec::new();
        for text in ["first", "changed", "and again"] {
            fs::write(&file, text).unwrap();
            assert_eq!(watch.due(), none, "{text}: it may still be written");
            assert_eq!(watch.due(), std::slice::from_ref(&file), "{text}");
            assert_eq!(watch.due(), none, "{text}: it is known");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(watch.due(), none);
        fs::write(&file, "and again").unwrap();
        watch.due();
        assert_eq!(watch.due(), [file], "it has come back");
    }

    #[test]
    fn a_folder_that_is_not_there_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("plugins");
        let mut watch = Watch::new(inner.clone());
        assert!(watch.due().is_empty() && watch.unreadable);
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("one.wasm"), "x").unwrap();
        watch.due();
        assert_eq!(watch.due(), [inner.join("one.wasm")]);
    }
}
