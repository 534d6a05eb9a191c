//! What `mainstay session` does to a session: through the server that has it, else as one commit into the
//! file. Nothing is run here; what a commit makes runnable starts with the next server.

use mainstay_core::commit::{Reply, Write};
use mainstay_core::edit;
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{Approval, Signal};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::port::Store as _;
use mainstay_core::tail::Tail;
use mainstay_server::wire::{self, NewAnswer, NewFork, NewInput, NewRevert, NewSignal};
use mainstay_store::SqliteStore;
use reqwest::Method;

use crate::access::{self, Context, Way};
use crate::error::{Code, Error, Result};
use crate::printer::tame;
use crate::show;

/// For a request without a body.
const NOTHING: Option<&()> = None;

pub(super) async fn cancel(context: &Context, id: SessionId) -> Result<()> {
    let was_busy = match context.way().await? {
        Way::Server(client) => {
            let done: wire::Interrupted = client.act(Method::POST, id, "cancel", NOTHING).await?;
            done.was_busy
        }
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let reply = access::commit(&store, id, Write::Cancel).await;
            store.close().await;
            matches!(reply?, Reply::Interrupted { was_busy: true })
        }
    };
    if context.printer.json {
        context.printer.value(&wire::Interrupted { was_busy })?;
    } else {
        context.printer.note("cancelled");
    }
    Ok(())
}

pub(super) async fn take_over(context: &Context, id: SessionId) -> Result<()> {
    let Way::Server(client) = context.way().await? else {
        return Err(Error::new(
            Code::Conflict,
            "no process has the store, so nobody runs the session",
        )
        .hint("start `mainstay serve`; it goes on with what was left"));
    };
    let done: wire::Interrupted = client.act(Method::POST, id, "take-over", NOTHING).await?;
    if context.printer.json {
        context.printer.value(&done)?;
    } else {
        context.printer.note(match done.was_busy {
            true => "taken over; recovery goes on with it",
            false => "nobody runs it",
        });
    }
    Ok(())
}

pub(super) async fn signal(
    context: &Context,
    id: SessionId,
    name: String,
    data: serde_json::Value,
) -> Result<()> {
    let new = NewInput {
        signal: Some(NewSignal {
            name: name.clone(),
            data: data.clone(),
        }),
        ..NewInput::default()
    };
    let content = InputContent::Signal(Signal {
        name,
        data: data.to_string(),
    });
    admit(context, id, new, content).await
}

pub(super) async fn compact(context: &Context, id: SessionId) -> Result<()> {
    let new = NewInput {
        compact: true,
        ..NewInput::default()
    };
    admit(context, id, new, InputContent::Compact {}).await
}

async fn admit(
    context: &Context,
    id: SessionId,
    new: NewInput,
    content: InputContent,
) -> Result<()> {
    let input = InputId::new();
    let admitted: wire::Admitted = match context.way().await? {
        Way::Server(client) => {
            let new = NewInput {
                id: Some(input),
                ..new
            };
            client.act(Method::POST, id, "inputs", Some(&new)).await?
        }
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let write = Write::Admit {
                input,
                delivery: Delivery::Steer,
                content,
            };
            let reply = access::commit(&store, id, write).await;
            store.close().await;
            let Reply::Admitted(admission) = reply? else {
                unreachable!("an admission is answered by one")
            };
            wire::Admitted {
                session: id,
                input: admission.input,
                seq: admission.seq,
                held: admission.held,
            }
        }
    };
    if context.printer.json {
        context.printer.value(&admitted)?;
    } else {
        context.printer.note(match admitted.held {
            Some(held) => format!("accepted; it runs later: {held}"),
            None => "accepted".into(),
        });
    }
    Ok(())
}

pub(super) async fn approvals(context: &Context, id: SessionId) -> Result<()> {
    let approvals = match context.way().await? {
        Way::Server(client) => client.approvals(id).await?,
        Way::File(paths) => {
            let store = access::read(&paths).await?;
            wire::Approval::all(&*tail(&store, id).await?)
        }
    };
    for approval in &approvals {
        if context.printer.json {
            context.printer.value(approval)?;
            continue;
        }
        let state = match approval.approved {
            None => "asks    ",
            Some(true) => "approved",
            Some(false) => "denied  ",
        };
        let question = approval.question.as_deref().unwrap_or_default();
        let line = format!("{state}  {}  {}", tame(&approval.key), tame(question));
        context.printer.line(line.trim_end())?;
        for detail in approval.details.as_deref().unwrap_or_default().lines() {
            context
                .printer
                .line(format!("          {}", tame(detail)))?;
        }
    }
    if approvals.is_empty() {
        context.printer.note("it asks nothing");
    }
    Ok(())
}

pub(super) async fn answer(
    context: &Context,
    id: SessionId,
    key: String,
    approved: bool,
    reason: Option<String>,
) -> Result<()> {
    match context.way().await? {
        Way::Server(client) => {
            let answer = NewAnswer { approved, reason };
            client.answer_approval(id, &key, &answer).await?;
        }
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let write = Write::Answer(Approval {
                key: key.clone(),
                approved,
                reason,
            });
            let reply = access::commit(&store, id, write).await;
            store.close().await;
            reply?;
        }
    }
    if context.printer.json {
        context
            .printer
            .value(&serde_json::json!({ "key": key, "approved": approved }))?;
    } else {
        context.printer.note(match approved {
            true => "approved",
            false => "denied",
        });
    }
    Ok(())
}

pub(super) async fn fork(context: &Context, id: SessionId, through: Option<Seq>) -> Result<()> {
    let fork = SessionId::new();
    let session: wire::Session = match context.way().await? {
        Way::Server(client) => {
            let new = NewFork {
                id: Some(fork),
                through,
            };
            client.act(Method::POST, id, "fork", Some(&new)).await?
        }
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let done = async {
                let source = tail(&store, id).await?;
                let begun = edit::fork_of(&store, &source, through).await?;
                access::commit(&store, fork, Write::Fork(begun)).await?;
                view(&store, fork).await
            }
            .await;
            store.close().await;
            done?
        }
    };
    if context.printer.json {
        context.printer.value(&session)?;
    } else {
        context.printer.line(session.id)?;
    }
    Ok(())
}

pub(super) async fn revert(context: &Context, id: SessionId, before: Option<Seq>) -> Result<()> {
    let session: wire::Session = match (context.way().await?, before) {
        (Way::Server(client), Some(before)) => {
            let new = NewRevert { before };
            client.act(Method::POST, id, "revert", Some(&new)).await?
        }
        (Way::Server(client), None) => client.act(Method::DELETE, id, "revert", NOTHING).await?,
        (Way::File(paths), before) => {
            let store = access::write(&paths).await?;
            let done = async {
                let write = match before {
                    Some(before) => {
                        let tail = tail(&store, id).await?;
                        let revert = edit::revert_of(&store, &tail, before).await?;
                        let head = tail.session.head;
                        Write::Revert { revert, head }
                    }
                    None => Write::ClearRevert,
                };
                access::commit(&store, id, write).await?;
                view(&store, id).await
            }
            .await;
            store.close().await;
            done?
        }
    };
    if context.printer.json {
        context.printer.value(&session)?;
    } else {
        context.printer.note(match session.reverted_to {
            Some(through) => format!(
                "shown through {through}; the next prompt makes it final, `session revert --undo` takes it back"
            ),
            None => "all is shown again".into(),
        });
    }
    Ok(())
}

pub(super) async fn adopt(context: &Context, id: SessionId) -> Result<()> {
    let session: wire::Session = match context.way().await? {
        Way::Server(client) => client.act(Method::POST, id, "adopt", NOTHING).await?,
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let done = async {
                access::commit(&store, id, Write::Adopt).await?;
                view(&store, id).await
            }
            .await;
            store.close().await;
            done?
        }
    };
    if context.printer.json {
        context.printer.value(&session)?;
    } else {
        let status = show::status(session.status);
        context.printer.note(format!("the session is {status}"));
    }
    Ok(())
}

async fn tail(store: &SqliteStore, id: SessionId) -> Result<std::sync::Arc<Tail>> {
    store.tail(id).await?.ok_or_else(|| access::unknown(id))
}

async fn view(store: &SqliteStore, id: SessionId) -> Result<wire::Session> {
    let now = store.now().await?;
    Ok(wire::Session::from_tail(&*tail(store, id).await?, now))
}
