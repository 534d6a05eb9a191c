//! `mainstay session`: look at sessions and steer them.

use mainstay_core::commit::{Reply, Write};
use mainstay_core::event;
use mainstay_core::history::Order;
use mainstay_core::id::{Millis, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::port::{Clock as _, Store as _, SystemClock};
use mainstay_core::tail::Status;
use mainstay_server::wire;

use crate::access::{self, Context, Way};
use crate::args::Session;
use crate::client::Told;
use crate::command::{steer, transfer};
use crate::error::{Code, Error, Result};
use crate::follow::{Show, to_the_end};
use crate::host::{Host, Listen};
use crate::show;

/// Items of a history that are shown.
const HISTORY: u32 = 100;

/// The time at which a file is read that nobody owns: whoever held a claim in it is gone.
const UNOWNED: Millis = Millis::MAX;

pub(crate) async fn session(context: &Context, args: Session) -> Result<()> {
    match args {
        Session::List { limit } => list(context, limit).await,
        Session::Show { id } => show(context, id).await,
        Session::Log { id, follow, after } => log(context, id, follow, after).await,
        Session::Interrupt { id, and_continue } => interrupt(context, id, and_continue).await,
        Session::Cancel { id } => steer::cancel(context, id).await,
        Session::Signal { id, name, data } => steer::signal(context, id, name, data).await,
        Session::Approvals { id } => steer::approvals(context, id).await,
        Session::Approve { id, key, reason } => steer::answer(context, id, key, true, reason).await,
        Session::Deny { id, key, reason } => steer::answer(context, id, key, false, reason).await,
        Session::Compact { id } => steer::compact(context, id).await,
        Session::Fork { id, through } => steer::fork(context, id, through).await,
        Session::Revert {
            id,
            before,
            undo: _,
        } => steer::revert(context, id, before).await,
        Session::Export { id, to } => transfer::export(context, id, to).await,
        Session::Import { file, lenient } => transfer::import(context, &file, lenient).await,
        Session::Adopt { id } => steer::adopt(context, id).await,
        Session::TakeOver { id } => steer::take_over(context, id).await,
        Session::Resume { id } => resume(context, id).await,
        Session::Delete { id } => delete(context, id).await,
    }
}

async fn list(context: &Context, limit: u32) -> Result<()> {
    let sessions = match context.way().await? {
        Way::Server(client) => client.sessions(limit).await?.items,
        // Nothing has been kept yet.
        Way::File(paths) if !paths.store.exists() => Vec::new(),
        Way::File(paths) => {
            let store = access::read(&paths).await?;
            let listed = store.sessions(None, limit).await?;
            listed
                .iter()
                .map(|listed| wire::Session::from_listed(listed, UNOWNED))
                .collect()
        }
    };
    let now = SystemClock::default().wall();
    for session in &sessions {
        if context.printer.json {
            context.printer.value(session)?;
        } else {
            context.printer.line(show::line(session, now))?;
        }
    }
    if sessions.is_empty() {
        context
            .printer
            .note("there is no session yet; begin one with `mainstay run \"…\"`");
    }
    Ok(())
}

async fn show(context: &Context, id: SessionId) -> Result<()> {
    let (session, mut items) = match context.way().await? {
        Way::Server(client) => (client.session(id).await?, client.newest(id, HISTORY).await?),
        Way::File(paths) => {
            let store = access::read(&paths).await?;
            let tail = store.tail(id).await?.ok_or_else(|| access::unknown(id))?;
            let range = Range {
                after: 0,
                through: tail.session.head,
            };
            let items = store.items(id, range, Order::NewestFirst, HISTORY).await?;
            let mut session = wire::Session::from_tail(&tail, UNOWNED);
            for need in mainstay_core::bound::needs(&tail) {
                if store.plugin(&need.digest).await?.is_none() {
                    session.missing.push(need);
                }
            }
            (session, items)
        }
    };
    items.reverse();
    let printer = &context.printer;
    if printer.json {
        printer.value(&serde_json::json!({ "session": session, "messages": items }))?;
        return Ok(());
    }
    let now = SystemClock::default().wall();
    for line in show::session(&session, now) {
        printer.line(line)?;
    }
    printer.line("")?;
    for line in items.iter().flat_map(show::item) {
        printer.line(line)?;
    }
    Ok(())
}

async fn log(context: &Context, id: SessionId, follow: bool, after: Seq) -> Result<()> {
    let print = |record: &mainstay_core::event::Record| {
        if context.printer.json {
            context.printer.value(record)
        } else {
            context.printer.line(show::event(record))
        }
    };
    match context.way().await? {
        Way::Server(client) => {
            let mut told = client.follow(id, after).await?;
            while let Some(told) = told.next().await? {
                match told {
                    Told::Event(record) => print(&record)?,
                    Told::Synced if !follow => break,
                    Told::Synced | Told::Live(_) => {}
                }
            }
        }
        Way::File(paths) => {
            let store = access::read(&paths).await?;
            let mut after = after;
            loop {
                let (records, head) = store
                    .events(id, after, 256)
                    .await?
                    .ok_or_else(|| access::unknown(id))?;
                for record in &records {
                    after = record.seq;
                    if event::knows(&record.kind, record.version) {
                        print(record)?;
                    }
                }
                if after >= head || records.is_empty() {
                    break;
                }
            }
            if follow {
                context
                    .printer
                    .note("nothing runs the session now; start it with `mainstay serve`");
            }
        }
    }
    Ok(())
}

async fn interrupt(context: &Context, id: SessionId, and_continue: bool) -> Result<()> {
    let was_busy = match context.way().await? {
        Way::Server(client) => client.interrupt(id, and_continue).await?.was_busy,
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            let write = Write::Interrupt {
                cause: None,
                and_continue,
            };
            let reply = access::commit(&store, id, write).await;
            store.close().await;
            matches!(reply?, Reply::Interrupted { was_busy: true })
        }
    };
    if context.printer.json {
        context.printer.value(&wire::Interrupted { was_busy })?;
    } else {
        context.printer.note(if was_busy {
            "stopped"
        } else {
            "nothing was running"
        });
    }
    Ok(())
}

async fn resume(context: &Context, id: SessionId) -> Result<()> {
    match context.way().await? {
        Way::Server(client) => {
            let session = client.resume(id).await?;
            if context.printer.json {
                context.printer.value(&session)?;
            } else {
                context
                    .printer
                    .note(format!("the session is {}", show::status(session.status)));
            }
            Ok(())
        }
        Way::File(paths) => {
            // Nobody else would run it: it is run here, to its end.
            let store = access::read(&paths).await?;
            let tail = store.tail(id).await;
            store.close().await;
            let after = tail?.ok_or_else(|| access::unknown(id))?.session.head;
            let host = Host::start(
                &paths,
                context.config()?,
                Listen::local(context.global.token.clone()),
            )
            .await?;
            let done = async {
                let client = context.client(&host.address)?;
                let mut follow = client.follow(id, after).await?;
                let mut show = Show::new(context, after);
                let session = client.resume(id).await?;
                if session.status == Status::Idle {
                    context.printer.note("the session has nothing left to do");
                }
                let session = to_the_end(&client, &mut follow, &mut show, id).await?;
                context.printer.end_line()?;
                show.end(&session)
            }
            .await;
            host.shutdown(std::future::pending()).await;
            done
        }
    }
}

async fn delete(context: &Context, id: SessionId) -> Result<()> {
    match context.way().await? {
        Way::Server(client) => client.delete(id).await?,
        Way::File(paths) => {
            let store = access::write(&paths).await?;
            if let Ok(Some(tail)) = store.tail(id).await
                && tail.session.is_ours()
                && tail.session.has_family()
            {
                store.close().await;
                return Err(Error::new(
                    Code::Conflict,
                    format!("session {id} has a parent or children, which are to hear of its end"),
                )
                .hint("start `mainstay serve`, and delete it through that"));
            }
            let deleted = store.delete(id).await;
            store.close().await;
            if !deleted? {
                return Err(access::unknown(id));
            }
        }
    }
    if context.printer.json {
        context
            .printer
            .value(&serde_json::json!({ "deleted": id }))?;
    } else {
        context.printer.note("deleted");
    }
    Ok(())
}
