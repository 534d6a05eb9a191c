//! Makes a database's schema, or adds what it lacks, in one transaction under a lock: of several
//! processes that begin at once one does it and the others find it done. Nodes of the build before may be
//! at work meanwhile, so it never stands long in their way: it gives up its place in the queue for a table
//! that is in use, and comes again. Nothing here needs a session of the database to last longer than a
//! transaction.

use std::time::Duration;

use rand::Rng as _;
use sqlx::migrate::{Migration, Migrator};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::OpenError;

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/postgres");

/// The oldest server that is supported, as `server_version_num` has it.
const NEEDED: i32 = 140_000;

/// Whoever waits for a table to be its own holds up all that come after, so this is as long as a node's
/// statement may have to wait for a migration that waits for another's.
const IN_THE_WAY: &str = "SET LOCAL lock_timeout = '200ms'";
/// How often a table may be in use before a start gives up, a quarter to three quarters of a second apart.
const TRIES: u32 = 100;

/// Brings the schema to what this build knows.
///
/// # Errors
///
/// Where the database is none of Mainstay's or of a newer build, lacks what `make` does not allow to be
/// made, or cannot be changed; it is then as it was.
pub(super) async fn migrate(
    conn: &mut PgConnection,
    place: &str,
    make: bool,
) -> Result<(), OpenError> {
    server(conn, place).await?;
    let all: Vec<&Migration> = MIGRATIONS.iter().collect();
    apply(conn, place, make, &all).await
}

async fn apply(
    conn: &mut PgConnection,
    place: &str,
    make: bool,
    all: &[&Migration],
) -> Result<(), OpenError> {
    for _ in 1..TRIES {
        match attempt(conn, place, make, all).await {
            Err(OpenError::Migration { cause, version, .. }) if is_in_use(&cause) => {
                tracing::info!(version, "tables are in use: the migration comes again");
                run(conn, place, "ROLLBACK").await?;
                let pause = rand::rng().random_range(250..750);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            done => return done,
        }
    }
    attempt(conn, place, make, all).await
}

/// A lock that did not come in time, or that would never have come.
fn is_in_use(cause: &sqlx::Error) -> bool {
    let code = cause.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

async fn attempt(
    conn: &mut PgConnection,
    place: &str,
    make: bool,
    all: &[&Migration],
) -> Result<(), OpenError> {
    // An arbitrary number that no other program is likely to lock.
    run(
        conn,
        place,
        "BEGIN; SELECT pg_advisory_xact_lock(5572318241)",
    )
    .await?;
    let missing = look(conn, place, all).await?;
    if missing.is_empty() {
        return run(conn, place, "ROLLBACK").await;
    }
    if !make {
        run(conn, place, "ROLLBACK").await?;
        return Err(lacking(place, all, &missing));
    }
    run(conn, place, IN_THE_WAY).await?;
    run(conn, place, LEDGER).await?;
    for migration in missing {
        let sql = AssertSqlSafe(migration.sql.as_str().to_owned());
        let done = conn.execute(sqlx::raw_sql(sql)).await;
        done.map_err(|cause| OpenError::Migration {
            place: place.into(),
            version: migration.version,
            cause,
        })?;
        let checksum: String = migration.checksum.iter().map(hex).collect();
        let description = migration.description.replace('\'', "''");
        let sql = format!(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES ({}, '{description}', true, '\\x{checksum}', 0)",
            migration.version
        );
        run(conn, place, &sql).await?;
    }
    run(conn, place, "COMMIT").await
}

fn lacking(place: &str, all: &[&Migration], missing: &[&Migration]) -> OpenError {
    let place = place.into();
    let versions = all.iter().map(|one| one.version);
    if missing.len() == versions.clone().count() {
        return OpenError::Missing { place };
    }
    let is_there = |version: &i64| missing.iter().all(|one| one.version != *version);
    OpenError::OlderSchema {
        place,
        found: versions.clone().filter(is_there).max().unwrap_or(0),
        known: versions.max().unwrap_or(0),
    }
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

// As `sqlx` keeps it, so that its own tools can be used as well.
const LEDGER: &str = "
    CREATE TABLE IF NOT EXISTS _sqlx_migrations (
        version bigint PRIMARY KEY, description text NOT NULL,
        installed_on timestamptz NOT NULL DEFAULT now(), success boolean NOT NULL,
        checksum bytea NOT NULL, execution_time bigint NOT NULL)";

async fn run(conn: &mut PgConnection, place: &str, sql: &str) -> Result<(), OpenError> {
    let done = conn
        .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await;
    done.map(drop).map_err(|cause| OpenError::sql(place, cause))
}

async fn server(conn: &mut PgConnection, place: &str) -> Result<(), OpenError> {
    let sql = "SELECT current_setting('server_version_num')::int4, current_setting('server_version'),
                      current_setting('server_encoding'), current_setting('fsync'), current_schema()";
    let row = conn.fetch_one(sqlx::raw_sql(sql)).await;
    let row = row.map_err(|cause| OpenError::sql(place, cause))?;
    let read = |cause| OpenError::sql(place, cause);
    let number: i32 = row.try_get(0).map_err(read)?;
    if number < NEEDED {
        return Err(OpenError::Server {
            place: place.into(),
            found: row.try_get(1).map_err(read)?,
            needed: NEEDED / 10_000,
        });
    }
    let encoding: String = row.try_get(2).map_err(read)?;
    if encoding != "UTF8" {
        return Err(OpenError::Encoding {
            place: place.into(),
            found: encoding,
        });
    }
    let fsync: String = row.try_get(3).map_err(read)?;
    if fsync == "off" {
        tracing::warn!(%place, "fsync is off: what is stored does not survive a crash of the machine");
    }
    let schema: Option<String> = row.try_get(4).map_err(read)?;
    if schema.is_none() {
        return Err(OpenError::NoSchema {
            place: place.into(),
        });
    }
    Ok(())
}

/// What is to be done, after a look at what there is.
async fn look<'m>(
    conn: &mut PgConnection,
    place: &str,
    all: &[&'m Migration],
) -> Result<Vec<&'m Migration>, OpenError> {
    let fail = |cause| OpenError::sql(place, cause);
    let foreign = || OpenError::Foreign {
        place: place.into(),
    };
    // What an extension brings is nobody's data.
    let sql = "
        SELECT (SELECT count(*) FROM pg_class c
                 WHERE c.relnamespace = current_schema()::regnamespace
                   AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
                   AND NOT EXISTS (SELECT 1 FROM pg_depend d
                                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                                      AND d.deptype = 'e')),
               to_regclass('_sqlx_migrations') IS NOT NULL, to_regclass('meta') IS NOT NULL";
    let row = conn.fetch_one(sqlx::raw_sql(sql)).await.map_err(fail)?;
    let relations: i64 = row.try_get(0).map_err(fail)?;
    let ledger: bool = row.try_get(1).map_err(fail)?;
    let meta: bool = row.try_get(2).map_err(fail)?;
    if relations == 0 {
        return Ok(all.to_vec());
    }
    if !ledger || !meta {
        return Err(foreign());
    }
    let sql = "SELECT count(*) FROM meta WHERE key = 'name' AND value LIKE 'store:%'";
    // Somebody else's table of that name may have other columns.
    let named = match conn.fetch_one(sqlx::raw_sql(sql)).await {
        Ok(row) => row.try_get::<i64, _>(0).map_err(fail)? == 1,
        Err(sqlx::Error::Database(_)) => false,
        Err(cause) => return Err(fail(cause)),
    };
    if !named {
        return Err(foreign());
    }
    let sql = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";
    let rows = conn.fetch_all(sqlx::raw_sql(sql)).await.map_err(fail)?;
    let mut there = Vec::with_capacity(rows.len());
    for row in rows {
        let version: i64 = row.try_get(0).map_err(fail)?;
        let checksum: Vec<u8> = row.try_get(1).map_err(fail)?;
        there.push((version, checksum));
    }
    let known = all.iter().map(|one| one.version).max().unwrap_or(0);
    let found = there.iter().map(|(version, _)| *version).max().unwrap_or(0);
    if found > known {
        return Err(OpenError::NewerSchema {
            place: place.into(),
            found,
            known,
        });
    }
    let mut missing = Vec::new();
    for &migration in all {
        match there
            .iter()
            .find(|(version, _)| *version == migration.version)
        {
            None => missing.push(migration),
            Some((_, checksum)) if **checksum == *migration.checksum => {}
            Some(_) => {
                return Err(OpenError::Altered {
                    place: place.into(),
                    version: migration.version,
                });
            }
        }
    }
    Ok(missing)
}

/// Whether this build has this migration, as it was applied.
pub(super) fn is_known(version: i64, checksum: &[u8]) -> bool {
    let mut all = MIGRATIONS.iter();
    all.any(|one| one.version == version && *one.checksum == *checksum)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::Instant;

    use mainstay_test_support::postgres;
    use sqlx::migrate::MigrationType;
    use sqlx::{Connection as _, Executor as _, SqlStr};

    use super::*;

    async fn columns(conn: &mut PgConnection) -> i64 {
        let sql = "SELECT count(*) FROM information_schema.columns
                    WHERE table_schema = current_schema() AND column_name = 'later'";
        sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
    }

    /// Whether anybody waits for a table.
    async fn waiting(conn: &mut PgConnection) -> bool {
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                                   WHERE d.datname = current_database()
                                     AND l.locktype = 'relation' AND NOT l.granted)";
        sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
    }

    /// A node in the middle of a commit reads the one table and then the other; the migration takes them
    /// the other way round.
    #[tokio::test]
    async fn upgrade_2_a_migration_comes_again_while_what_it_changes_is_in_use() {
        let Some(server) = postgres::server() else {
            return;
        };
        let url = server.database();
        let mut conn = PgConnection::connect(&url).await.unwrap();
        migrate(&mut conn, &url, true).await.unwrap();
        let wider = Migration::new(
            2,
            Cow::Borrowed("later"),
            MigrationType::Simple,
            SqlStr::from_static(
                "ALTER TABLE event ADD COLUMN later text; ALTER TABLE session ADD COLUMN later text",
            ),
            false,
        );
        let all: Vec<&Migration> = MIGRATIONS.iter().chain([&wider]).collect();

        let mut busy = PgConnection::connect(&url).await.unwrap();
        busy.execute("BEGIN; SELECT count(*) FROM session")
            .await
            .unwrap();
        let mut newer = PgConnection::connect(&url).await.unwrap();
        let mut moves_in = Box::pin(apply(&mut newer, &url, true, &all));
        let mut reader = PgConnection::connect(&url).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut came, mut waits) = (0, false);
        while came < 3 {
            assert!(Instant::now() < deadline, "it came {came} times");
            tokio::select! {
                done = &mut moves_in => panic!("the table is in use: {done:?}"),
                is = waiting(&mut reader) => {
                    came += u32::from(is && !waits);
                    waits = is;
                }
            }
            // Others get their turn all the while, and see nothing of it.
            tokio::select! {
                done = &mut moves_in => panic!("the table is in use: {done:?}"),
                done = busy.execute("SELECT count(*) FROM event") => drop(done.unwrap()),
            }
            assert_eq!(columns(&mut reader).await, 0);
        }
        busy.execute("COMMIT").await.unwrap();
        let done = tokio::time::timeout(Duration::from_secs(60), moves_in).await;
        done.expect("it ends").unwrap();
        assert_eq!(columns(&mut reader).await, 2);
        let found = look(&mut newer, &url, &MIGRATIONS.iter().collect::<Vec<_>>()).await;
        assert!(matches!(
            found,
            Err(OpenError::NewerSchema { found: 2, .. })
        ));
    }
}
