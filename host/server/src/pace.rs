//! The body of a request as fast as its client sends it, and no slower than it must. Waiting for a
//! client uses up a stock of time that what comes restores, so that neither silence nor a trickle
//! holds a connection for long; time in which nobody asks for more of the body is not the client's.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Bytes that restore a second.
const RATE: f64 = 4096.0;

/// The client took too long over its body.
#[derive(Debug, thiserror::Error)]
#[error("the client sent too little for too long")]
pub(crate) struct Stalled;

/// A body with a stock of time.
pub(crate) struct Paced<B> {
    body: B,
    patience: Duration,
    /// What is left of it.
    stock: Duration,
    /// Since when the client is waited for, and what ends that.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B, patience: Duration) -> Self {
        Self {
            body,
            patience,
            stock: patience,
            waiting: None,
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some((since, _)) = this.waiting.take() {
                    this.stock = this.stock.saturating_sub(since.elapsed());
                }
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    let restored = Duration::from_secs_f64(data.len() as f64 / RATE);
                    this.stock = this.stock.saturating_add(restored).min(this.patience);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let stock = this.stock;
                let (_, end) = this
                    .waiting
                    .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(stock))));
                match end.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(Stalled.into()))),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
