//! A Postgres server of the tests' own, and a fresh database per test. The server is started by the
//! first test of a process that asks, in a temporary directory, and is gone with the process, however
//! that ends. `MAINSTAY_TEST_POSTGRES` names an existing server instead, as a URL whose user may create
//! databases.

use std::io::{Read as _, Seek as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use url::Url;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that listens on the loopback.
#[derive(Debug)]
pub struct Server {
    port: u16,
    psql: Psql,
    own: Option<Own>,
}

#[derive(Debug)]
struct Psql {
    bin: PathBuf,
    /// Whatever database it names is replaced.
    url: Url,
}

/// What was started here.
#[derive(Debug)]
struct Own {
    bin: PathBuf,
    dir: PathBuf,
    user: Option<u32>,
    settings: Vec<String>,
    /// Stops the server and removes its directory once its input is closed, as it is when this process
    /// ends.
    watchdog: Child,
}

/// The server that this process' tests share. `None`, and a line that says so, where Postgres is not
/// installed.
///
/// # Panics
/// If it does not start; and where it is not installed, if `CI` is set.
pub fn server() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED.get_or_init(|| start(&[])).as_ref()
}

/// A server of one's own, with settings as in `postgresql.conf`.
///
/// # Panics
/// Like [`server`].
pub fn start(settings: &[&str]) -> Option<Server> {
    if let Ok(url) = std::env::var("MAINSTAY_TEST_POSTGRES")
        && settings.is_empty()
    {
        let bin = bin().unwrap_or_default();
        let url = Url::parse(&url).expect("MAINSTAY_TEST_POSTGRES is a URL");
        return Some(Server {
            port: 0,
            psql: Psql { bin, url },
            own: None,
        });
    }
    let Some(bin) = bin() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "Postgres is not installed: put initdb and pg_ctl on the PATH, or set MAINSTAY_TEST_POSTGRES"
        );
        eprintln!("skipped: Postgres is not installed, and MAINSTAY_TEST_POSTGRES is not set");
        return None;
    };
    Some(Server::start(&bin, settings))
}

/// Where `initdb` and the others are.
fn bin() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .filter_map(|dir| std::fs::canonicalize(dir.join("initdb")).ok())
        .filter_map(|file| file.parent().map(Path::to_owned));
    let mut installed: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    installed.sort();
    on_path
        .chain(installed.into_iter().rev())
        .find(|dir| dir.join("initdb").exists() && dir.join("pg_ctl").exists())
}

impl Server {
    fn start(bin: &Path, settings: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstay-pg-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).expect("a temporary directory");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).expect("its mode");
        // Postgres refuses to run as root.
        let is_root = std::fs::metadata(&dir).expect("it was made").uid() == 0;
        let user = is_root.then_some(65_534);
        if user.is_some() {
            chown(&dir, user, user).expect("root may give it away");
        }
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            free.local_addr().expect("it is bound").port()
        };
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
        ]);
        initdb.args(["--no-sync", "--pgdata"]).arg(dir.join("data"));
        done(as_user(&mut initdb, user), &dir);

        let settings: Vec<String> = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", dir.display()),
            "max_connections=300".into(),
            "shared_buffers=64MB".into(),
            "max_wal_size=256MB".into(),
        ]
        .into_iter()
        .chain(settings.iter().map(|setting| (*setting).to_owned()))
        .collect();
        let watchdog = watchdog(bin, &dir, user);
        let own = Own {
            bin: bin.into(),
            dir,
            user,
            settings,
            watchdog,
        };
        own.launch();
        Self {
            port,
            psql: Psql {
                bin: bin.into(),
                url: Url::parse(&format!("postgres://postgres@127.0.0.1:{port}")).expect("a URL"),
            },
            own: Some(own),
        }
    }

    /// The port on the loopback; 0 for a server that was not started here.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// One of Postgres' own programs, `pgbench` for example.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.psql.bin.join(name)
    }

    /// A fresh database, as a URL. It is left behind when the test is done.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn database(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        self.psql.run(
            "postgres",
            &format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name} TEMPLATE template0"),
        );
        self.psql.url_of(&name)
    }

    /// Stops a server of one's own as a crash would, and starts it again.
    ///
    /// # Panics
    /// If it is not one's own, or does not come back.
    pub fn crash(&self) {
        self.own().stop("immediate");
        self.own().launch();
    }

    /// Stops a server of one's own for good, as a crash would.
    ///
    /// # Panics
    /// If it is not one's own.
    pub fn stop(&self) {
        self.own().stop("immediate");
    }

    fn own(&self) -> &Own {
        self.own.as_ref().expect("the server was started here")
    }
}

impl Psql {
    /// The server's URL with this database in place of whichever it names.
    fn url_of(&self, database: &str) -> String {
        let mut url = self.url.clone();
        url.set_path(database);
        url.into()
    }

    fn run(&self, database: &str, sql: &str) {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args([
            "--no-psqlrc",
            "--quiet",
            "--set=ON_ERROR_STOP=1",
            "--dbname",
        ]);
        psql.arg(self.url_of(database));
        // One command each: a database is not made inside a transaction.
        for one in sql.split("; ") {
            psql.args(["--command", one]);
        }
        psql.env("PGOPTIONS", "--client-min-messages=warning");
        done(&mut psql, Path::new("/"));
    }
}

impl Own {
    fn launch(&self) {
        let mut pg_ctl = Command::new(self.bin.join("pg_ctl"));
        pg_ctl.arg("start").arg("--wait").arg("--silent");
        pg_ctl.arg(format!("--timeout={}", PATIENCE.as_secs()));
        pg_ctl.arg("--pgdata").arg(self.dir.join("data"));
        pg_ctl.arg("--log").arg(self.dir.join("log"));
        let options: Vec<String> = self
            .settings
            .iter()
            .map(|one| format!("-c {one}"))
            .collect();
        pg_ctl.arg("--options").arg(options.join(" "));
        done(as_user(&mut pg_ctl, self.user), &self.dir);
    }

    fn stop(&self, mode: &str) {
        let mut pg_ctl = Command::new(self.bin.join("pg_ctl"));
        pg_ctl.args(["stop", "--wait", "--silent", "--mode", mode, "--pgdata"]);
        pg_ctl.arg(self.dir.join("data"));
        done(as_user(&mut pg_ctl, self.user), &self.dir);
    }
}

fn as_user(command: &mut Command, user: Option<u32>) -> &mut Command {
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
    command
}

/// Runs a command to its end.
fn done(command: &mut Command, dir: &Path) {
    // The server must not keep a pipe of ours open: what is printed goes through a file.
    let mut out = tempfile::tempfile().expect("a temporary file");
    let copy = || out.try_clone().expect("a descriptor");
    command.current_dir(dir).stdin(Stdio::null());
    command.stdout(copy()).stderr(copy());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait(&mut child, command);
    if !status {
        let mut text = String::new();
        out.rewind().expect("a file");
        let _ = out.read_to_string(&mut text);
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!("{command:?} failed:\n{text}\n{log}");
    }
}

fn wait(child: &mut Child, command: &Command) -> bool {
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status.success();
        }
        assert!(Instant::now() < deadline, "{command:?} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// A process that outlives this one, to stop the server when this one is gone, killed or not.
fn watchdog(bin: &Path, dir: &Path, user: Option<u32>) -> Child {
    const SCRIPT: &str = r#"
        cat >/dev/null
        "$1/pg_ctl" stop --silent --mode immediate --pgdata "$2/data"
        rm -rf "$2"
    "#;
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT, "watchdog"]).arg(bin).arg(dir);
    shell.current_dir(dir).stdin(Stdio::piped());
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    // Not in this process' group: what is typed at a terminal ends the tests first.
    shell.process_group(0);
    as_user(&mut shell, user).spawn().expect("a shell")
}
