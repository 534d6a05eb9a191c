//! Where components and the names that lead to them are kept: the database, in a host.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::id::Digest;
use mainstay_core::plugin::{Kind, PluginInfo};

/// Keeps components by digest, and aliases that can be re-pointed at any time.
#[async_trait]
pub trait ComponentSource: Send + Sync + 'static {
    /// The bytes of a component, `None` where there is none of this digest.
    async fn component(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError>;

    /// What was found out about a component when it was put here.
    async fn info(&self, digest: &str) -> Result<Option<PluginInfo>, BoxError>;

    /// The digest that an alias points to now.
    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, BoxError>;

    /// Keeps a component. The same digest twice is kept once.
    async fn put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), BoxError>;
}

/// A source that forgets when it is dropped: for tests and for tools that look at one file.
#[derive(Default)]
pub struct MemorySource {
    components: Mutex<HashMap<Digest, (PluginInfo, Vec<u8>)>>,
    aliases: Mutex<HashMap<(Kind, String), Digest>>,
}

impl MemorySource {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `alias` leads to `digest`.
    pub fn point(&self, kind: Kind, alias: &str, digest: &str) {
        self.aliases
            .lock()
            .expect("no panic under this lock")
            .insert((kind, alias.to_owned()), digest.to_owned());
    }

    /// How many components are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.components
            .lock()
            .expect("no panic under this lock")
            .len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[async_trait]
impl ComponentSource for MemorySource {
    async fn component(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        let components = self.components.lock().expect("no panic under this lock");
        Ok(components.get(digest).map(|(_, bytes)| bytes.clone()))
    }

    async fn info(&self, digest: &str) -> Result<Option<PluginInfo>, BoxError> {
        let components = self.components.lock().expect("no panic under this lock");
        Ok(components.get(digest).map(|(info, _)| info.clone()))
    }

    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, BoxError> {
        let aliases = self.aliases.lock().expect("no panic under this lock");
        Ok(aliases.get(&(kind, alias.to_owned())).cloned())
    }

    async fn put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), BoxError> {
        self.components
            .lock()
            .expect("no panic under this lock")
            .entry(info.digest.clone())
            .or_insert_with(|| (info.clone(), bytes.to_vec()));
        Ok(())
    }
}
