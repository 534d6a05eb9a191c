//! placeholder for checking
use std::sync::Arc;
use mainstay_core::plugin::{PluginInfo, Plugins};
use mainstay_core::port::Store;
use mainstay_server::PluginError;
use crate::config::Loaded;
use crate::error::Result;
use crate::paths::Paths;
pub(crate) struct Wired(Arc<dyn Plugins>);
impl Wired {
    pub(crate) fn new(_: &Paths, _: &Loaded, _: Arc<dyn Store>) -> Result<Self> { panic!() }
    pub(crate) fn port(&self) -> Arc<dyn Plugins> { Arc::clone(&self.0) }
    pub(crate) async fn inspect(&self, _: Vec<u8>) -> Result<PluginInfo, PluginError> { panic!() }
}
pub(crate) async fn inspect(_: Vec<u8>) -> Result<PluginInfo, PluginError> { panic!() }
