//! A store in front of another. Everything passes through it but what its owner changes, so that a
//! store which breaks, counts or delays says only that.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::commit::Commit;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Alias, Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};

/// What a store in front of another changes. [`Delegating`] makes a store of it.
#[async_trait]
pub trait Delegate: Send + Sync + 'static {
    /// The store behind.
    fn inner(&self) -> &dyn Store;

    /// Before every call but those that have a method here.
    ///
    /// # Errors
    /// The call's answer; then the store behind hears nothing of it.
    async fn before(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// After every call but those that have a method here.
    ///
    /// # Errors
    /// The call's answer, whatever the store behind said.
    async fn after(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.inner().commit(commit).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        self.before().await?;
        let beaten = self.inner().beat(beat).await;
        self.after().await?;
        beaten
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        self.before().await?;
        let events = self.inner().events(session, after, limit).await;
        self.after().await?;
        events
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        self.before().await?;
        let dump = self.inner().dump(session).await;
        self.after().await?;
        dump
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.before().await?;
        let items = self.inner().items(session, range, order, limit).await;
        self.after().await?;
        items
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.before().await?;
        let size = self.inner().measure(session, range).await;
        self.after().await?;
        size
    }

    /// As [`Delegate::items`], unless it has more to say.
    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.items(session, range, order, limit).await
    }

    /// As [`Delegate::measure`], unless it has more to say.
    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.measure(session, range).await
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        self.before().await?;
        let inputs = self.inner().inputs(session, all).await;
        self.after().await?;
        inputs
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        self.before().await?;
        let scan = self.inner().scan_within(limit, places).await;
        self.after().await?;
        scan
    }
}

#[async_trait]
impl<D: Delegate> Delegate for Arc<D> {
    fn inner(&self) -> &dyn Store {
        (**self).inner()
    }

    async fn before(&self) -> Result<(), StoreError> {
        (**self).before().await
    }

    async fn after(&self) -> Result<(), StoreError> {
        (**self).after().await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        (**self).commit(commit).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        (**self).beat(beat).await
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        (**self).events(session, after, limit).await
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        (**self).dump(session).await
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        (**self).items(session, range, order, limit).await
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        (**self).measure(session, range).await
    }

    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        (**self).items_held(session, range, order, limit).await
    }

    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        (**self).measure_held(session, range).await
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        (**self).inputs(session, all).await
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        (**self).scan_within(limit, places).await
    }
}

/// The store that a [`Delegate`] is.
pub struct Delegating<D>(pub D);

/// Calls the store behind, between the delegate's `before` and `after`.
macro_rules! pass {
    ($self:ident, $call:ident($($argument:expr),*)) => {{
        $self.0.before().await?;
        let answer = $self.0.inner().$call($($argument),*).await;
        $self.0.after().await?;
        answer
    }};
}

#[async_trait]
impl<D: Delegate> Store for Delegating<D> {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.0.commit(commit).await
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        pass!(self, tail(session))
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        self.0.events(session, after, limit).await
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.0.items(session, range, order, limit).await
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.0.measure(session, range).await
    }

    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.0.items_held(session, range, order, limit).await
    }

    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.0.measure_held(session, range).await
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        self.0.inputs(session, all).await
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        pass!(self, sessions(before, limit))
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        self.0.dump(session).await
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        pass!(self, delete(session))
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        self.0.scan_within(limit, places).await
    }

    async fn lag(&self) -> Result<Lag, StoreError> {
        pass!(self, lag())
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        self.0.beat(beat).await
    }

    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        pass!(self, nodes())
    }

    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        pass!(self, node_drain(owner))
    }

    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        pass!(self, nodes_forget(past_ms))
    }

    async fn name(&self) -> Result<String, StoreError> {
        pass!(self, name())
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        pass!(self, now())
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        pass!(self, blob_put(digest, bytes))
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        pass!(self, blob(digest))
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        pass!(self, plugin_put(info, bytes))
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        pass!(self, plugin(digest))
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        pass!(self, plugin_bytes(digest))
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        pass!(self, plugins())
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        pass!(self, plugin_delete(digest))
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        pass!(self, alias_put(kind, alias, digest, source))
    }

    async fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        pass!(self, aliases())
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        pass!(self, digests_in_use())
    }
}
