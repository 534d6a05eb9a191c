//! Components on their way in: looked at, described, compiled once however many ask, and dropped.

use std::collections::HashSet;
use std::sync::Arc;

use mainstay_core::id::{Digest, digest};
use mainstay_core::plugin::{GuestError, Kind, PluginInfo, Workspace};
use mainstay_core::{BoxError, chain};
use tokio::sync::OnceCell;
use wasmtime::component::Component;

use super::toolbox::ListError;
use super::{Loaded, Runtime};
use crate::bindings::convert;
use crate::cache::Swept;
use crate::inspect;
use crate::instance::{Fault, FaultKind, Function, Label, Linked};

impl Runtime {
    /// What a file is, without storing anything of it.
    ///
    /// # Errors
    /// It is no plugin that this host takes; says why.
    pub async fn inspect(&self, bytes: &[u8]) -> Result<PluginInfo, inspect::Error> {
        let (loaded, _) = self.examine(bytes).await?;
        Ok(PluginInfo::clone(&loaded.info))
    }

    /// Checks a component and stores it, once for the same bytes. An alias is the caller's to point.
    ///
    /// # Errors
    /// As [`Self::inspect`], and nothing is stored then.
    pub async fn install(&self, bytes: &[u8]) -> Result<Arc<PluginInfo>, inspect::Error> {
        let digest = digest(bytes);
        let cell = self.cell(&digest);
        let installed = cell
            .get_or_try_init(async || {
                let known = self
                    .source
                    .info(&digest)
                    .await
                    .map_err(inspect::Error::Store)?;
                if let Some(info) = known {
                    return self
                        .load(info, bytes.to_vec())
                        .await
                        .map_err(|fault| inspect::Error::Guest(fault.into()));
                }
                let (loaded, component) = self.examine(bytes).await?;
                self.source
                    .put(&loaded.info, bytes)
                    .await
                    .map_err(inspect::Error::Store)?;
                self.cache.keep(&digest, &component).await;
                Ok(loaded)
            })
            .await;
        match installed {
            Ok(loaded) => Ok(Arc::clone(&loaded.info)),
            Err(error) => {
                self.forget(&digest);
                Err(error)
            }
        }
    }

    /// Lets go of a component that the source no longer has. Calls that are running go on.
    pub fn forget(&self, digest: &str) {
        self.loaded
            .lock()
            .expect("no panic under this lock")
            .remove(digest);
    }

    /// Removes compiled code from disk that is of other components than these, or of other engines; a
    /// dry run only counts it. What is loaded stays loaded.
    ///
    /// # Errors
    /// A folder cannot be read, or a file cannot be removed.
    pub async fn sweep(&self, keep: HashSet<Digest>, dry_run: bool) -> Result<Swept, BoxError> {
        Ok(self.cache.sweep(keep, dry_run).await?)
    }

    fn cell(&self, digest: &str) -> Arc<OnceCell<Arc<Loaded>>> {
        let mut loaded = self.loaded.lock().expect("no panic under this lock");
        Arc::clone(loaded.entry(digest.to_owned()).or_default())
    }

    async fn examine(&self, bytes: &[u8]) -> Result<(Arc<Loaded>, Component), inspect::Error> {
        let shape = inspect::shape(bytes)?;
        let mut info = PluginInfo {
            digest: digest(bytes),
            kind: shape.kind,
            name: String::new(),
            version: String::new(),
            summary: String::new(),
            wit: shape.version,
            size: bytes.len() as u64,
            imports: shape.imports,
            options_schema: None,
            state_version: 0,
            accepts: Vec::new(),
            http: Vec::new(),
            secrets: Vec::new(),
            workspace: Workspace::None,
            models: Vec::new(),
            hosted_tools: Vec::new(),
            tools: Vec::new(),
        };
        let component = self
            .cache
            .compile(bytes.to_vec())
            .await
            .map_err(|error| inspect::Error::Malformed(format!("{error:#}")))?;
        let linked = self
            .link(info.kind, &component)
            .map_err(|error| inspect::Error::Malformed(format!("{error:#}")))?;
        let nameless = Loaded {
            label: Arc::new(Label::of(&info)),
            info: Arc::new(info.clone()),
            linked,
        };
        self.describe(&nameless, &mut info)
            .await
            .map_err(GuestError::from)?;
        inspect::manifest(&info)?;
        let mut loaded = Loaded {
            label: Arc::new(Label::of(&info)),
            ..nameless
        };
        if info.kind == Kind::Toolbox {
            match self.list(&loaded, None).await {
                Ok(tools) => info.tools = tools,
                // It may need options to have tools.
                Err(ListError::Guest(GuestError::Refused(_))) if info.options_schema.is_some() => {}
                Err(ListError::Guest(error)) => return Err(error.into()),
                Err(ListError::Rule(error)) => return Err(error),
            }
        }
        loaded.info = Arc::new(info);
        Ok((Arc::new(loaded), component))
    }

    fn link(&self, kind: Kind, component: &Component) -> wasmtime::Result<Linked> {
        let linker = &self.linkers[match kind {
            Kind::Runner => 0,
            Kind::Provider => 1,
            Kind::Toolbox => 2,
        }];
        Linked::new(kind, linker.instantiate_pre(component)?)
    }

    /// A component that was examined before.
    async fn load(&self, info: PluginInfo, bytes: Vec<u8>) -> Result<Arc<Loaded>, Fault> {
        let label = Arc::new(Label::of(&info));
        let host = |error: wasmtime::Error| Fault {
            kind: FaultKind::Host,
            text: format!("{label} could not be compiled: {error:#}"),
        };
        let component = match self.cache.load(&info.digest).await {
            Some(component) => component,
            None => {
                let component = self.cache.compile(bytes).await.map_err(host)?;
                self.cache.keep(&info.digest, &component).await;
                component
            }
        };
        let linked = self.link(info.kind, &component).map_err(host)?;
        Ok(Arc::new(Loaded {
            info: Arc::new(info),
            label: Arc::clone(&label),
            linked,
        }))
    }

    /// The component of this digest, loaded if it is not yet.
    pub(super) async fn component(
        &self,
        digest: &str,
        kind: Kind,
    ) -> Result<Arc<Loaded>, GuestError> {
        let cell = self.cell(digest);
        let loaded = cell
            .get_or_try_init(async || {
                let host = |cause: BoxError| {
                    GuestError::Host(format!(
                        "component sha256:{digest} could not be read: {}",
                        chain(cause.as_ref())
                    ))
                };
                let info = self.source.info(digest).await.map_err(host)?;
                let bytes = self.source.component(digest).await.map_err(host)?;
                let (Some(info), Some(bytes)) = (info, bytes) else {
                    return Err(GuestError::Missing(format!(
                        "this host has no component sha256:{digest}; load it again"
                    )));
                };
                if mainstay_core::id::digest(&bytes) != digest {
                    return Err(GuestError::Missing(format!(
                        "the stored bytes of component sha256:{digest} are damaged; load it again"
                    )));
                }
                Ok(self.load(info, bytes).await?)
            })
            .await;
        let loaded = match loaded {
            Ok(loaded) => Arc::clone(loaded),
            Err(error) => {
                // Names that lead nowhere are not kept.
                if matches!(error, GuestError::Missing(_)) {
                    self.forget(digest);
                }
                return Err(error);
            }
        };
        if loaded.info.kind != kind {
            return Err(GuestError::Contract(format!(
                "{} is asked as if it were a {kind}",
                loaded.label
            )));
        }
        Ok(loaded)
    }

    async fn describe(&self, loaded: &Loaded, info: &mut PluginInfo) -> Result<(), Fault> {
        let function = Function {
            name: "describe",
            output: "manifest",
            output_bytes: MANIFEST_BYTES,
        };
        let mut instance = self
            .pure(loaded, self.config.limits.describe(info.kind))
            .await;
        instance
            .run(function, String::new(), async |store| {
                match &loaded.linked {
                    Linked::Runner(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let steps = guest.mainstay_plugin_steps();
                        convert::runner_manifest(info, steps.call_describe(store).await?);
                    }
                    Linked::Provider(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let models = guest.mainstay_plugin_models();
                        convert::provider_manifest(info, models.call_describe(store).await?);
                    }
                    Linked::Toolbox(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let tools = guest.mainstay_plugin_tools();
                        convert::toolbox_manifest(info, tools.call_describe(store).await?);
                    }
                }
                Ok(())
            })
            .await
    }
}

/// Of a manifest.
const MANIFEST_BYTES: usize = 1 << 20;
