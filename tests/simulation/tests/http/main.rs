//! What a server answers, asked of its routes over a scripted node.

mod delete;
mod health;
mod retries;

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::access::Access;
use mainstay_core::node::Node;
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_server::wire::{Collect, Collected, Plugin};
use mainstay_server::{Collector, Options, PluginAdmin, PluginError, ServerState, router};

/// Nothing here loads plugins or collects.
struct Nobody;

#[async_trait]
impl PluginAdmin for Nobody {
    async fn install(&self, _: Vec<u8>, _: Option<String>) -> Result<Plugin, PluginError> {
        unreachable!()
    }

    async fn load(&self, _: &str, _: Option<String>) -> Result<Plugin, PluginError> {
        unreachable!()
    }

    async fn inspect(&self, _: Vec<u8>) -> Result<PluginInfo, PluginError> {
        unreachable!()
    }

    async fn list(&self) -> Result<Vec<Plugin>, PluginError> {
        unreachable!()
    }

    async fn access(&self) -> Result<Vec<Access>, PluginError> {
        unreachable!()
    }

    async fn remove(&self, _: Kind, _: &str) -> Result<(), PluginError> {
        unreachable!()
    }

    async fn alias(&self, _: Kind, _: &str, _: &str) -> Result<Plugin, PluginError> {
        unreachable!()
    }
}

#[async_trait]
impl Collector for Nobody {
    async fn collect(&self, _: Collect) -> Result<Collected, BoxError> {
        unreachable!()
    }
}

/// The routes of a node.
fn app(node: Arc<Node>, options: Options) -> axum::Router {
    let nobody = Arc::new(Nobody);
    router(ServerState::new(
        node,
        Arc::clone(&nobody) as _,
        nobody,
        options,
    ))
}
