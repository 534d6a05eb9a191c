//! `mainstay chat` in a terminal of its own, which is closed in the middle of a turn.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use tokio::process::Child;

use super::world::{Api, World, of};
use crate::support::{DEADLINE, mainstay};

/// A step that lasts long enough for a person to type, and ends.
const LITTLE: &str = "slow 800 one two three four five";

/// A chat and the other end of its terminal.
struct Chat {
    terminal: OwnedFd,
    child: Child,
}

impl Chat {
    fn open(world: &World, session: &str) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // A process that has it too would keep it open.
        rustix::io::fcntl_setfd(&terminal, FdFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let inner = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        let mut command = mainstay(&world.store, &world.config);
        command
            .args(["chat", "--session", session])
            .stdin(Stdio::from(inner))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: between fork and exec it only makes two system calls, which allocate nothing.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Self { terminal, child }
    }

    fn types(&self, line: &str) {
        let line = format!("{line}\n");
        let written = rustix::io::write(&self.terminal, line.as_bytes()).unwrap();
        assert_eq!(written, line.len());
    }

    /// Closes the terminal and waits until the chat is gone.
    async fn close(mut self) {
        drop(self.terminal);
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        ended.expect("the chat ends with its terminal").unwrap();
    }
}

/// A turn runs, and a line that is typed meanwhile has been admitted.
async fn typed(api: &Api, chat: &Chat, session: &str) {
    chat.types(LITTLE);
    api.until_event(session, "step.output").await;
    chat.types("say typed");
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let inputs = api.inputs(session).await;
        if let Some(typed) = inputs.get(1) {
            assert_eq!(typed["delivery"], "steer", "{typed}");
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "it is admitted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_7_a_typed_line_steers_and_a_closed_terminal_leaves_the_session() {
    let world = World::new();
    let api = world.server().await;
    let session = api.session().await;
    let chat = Chat::open(&world, &session);
    typed(&api, &chat, &session).await;
    chat.close().await;
    let events = api.until_event(&session, "turn.ended").await;
    assert_eq!(of(&events, "interrupt.requested").len(), 0);
    api.idle(&session).await;
    let events = api.events(&session).await;
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .filter(|kind| ["input.promoted", "model.ended", "turn.ended"].contains(kind))
        .collect();
    assert_eq!(
        kinds,
        [
            "input.promoted",
            "model.ended",
            "input.promoted",
            "turn.ended"
        ],
        "it entered at the next step boundary"
    );
    let said = ["> say typed", "typed"];
    assert!(
        api.words(&session)
            .await
            .ends_with(&said.map(str::to_owned))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_7_a_chat_that_had_the_store_leaves_its_session_to_the_next_start() {
    let world = World::new();
    let (code, _, err) = world.run(&["run", "say hello"]).await;
    assert_eq!(code, 0, "{err}");
    let (_, listed, _) = world.run(&["--json", "session", "list"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let session = listed["id"].as_str().unwrap();
    let chat = Chat::open(&world, session);
    chat.types(LITTLE);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let log = ["--json", "session", "log", session];
        let (_, log, _) = world.run(&log).await;
        if log.contains("step.output") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it runs");
    }
    chat.close().await;
    let api = world.server().await;
    let shown = api.idle(session).await;
    assert_eq!(shown["last_turn"], json!({ "outcome": "done" }));
    let events = api.events(session).await;
    assert_eq!(of(&events, "interrupt.requested").len(), 0);
    assert_eq!(of(&events, "turn.ended").len(), 2);
}
