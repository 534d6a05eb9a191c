//! Makes a database's schema, or adds what it lacks, in one transaction under a lock: of several
//! processes that begin at once one does it and the others find it done. Nothing here needs a session
//! of the database to last longer than a transaction.

use sqlx::migrate::{Migration, Migrator};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::OpenError;

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/postgres");

/// The oldest server that is supported, as `server_version_num` has it.
const NEEDED: i32 = 140_000;

pub(super) async fn migrate(
    conn: &mut PgConnection,
    place: &str,
    make: bool,
) -> Result<(), OpenError> {
    server(conn, place).await?;
    // An arbitrary number that no other program is likely to lock.
    run(
        conn,
        place,
        "BEGIN; SELECT pg_advisory_xact_lock(5572318241)",
    )
    .await?;
    let missing = look(conn, place).await?;
    if missing.is_empty() {
        return run(conn, place, "ROLLBACK").await;
    }
    if !make {
        run(conn, place, "ROLLBACK").await?;
        return Err(lacking(place, &missing));
    }
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

fn lacking(place: &str, missing: &[&Migration]) -> OpenError {
    let place = place.into();
    let versions = MIGRATIONS.iter().map(|one| one.version);
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
async fn look(conn: &mut PgConnection, place: &str) -> Result<Vec<&'static Migration>, OpenError> {
    let fail = |cause| OpenError::sql(place, cause);
    let foreign = || OpenError::Foreign {
        place: place.into(),
    };
    let all = MIGRATIONS.iter();
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
        return Ok(all.collect());
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
    let known = all.clone().map(|one| one.version).max().unwrap_or(0);
    let found = there.iter().map(|(version, _)| *version).max().unwrap_or(0);
    if found > known {
        return Err(OpenError::NewerSchema {
            place: place.into(),
            found,
            known,
        });
    }
    let mut missing = Vec::new();
    for migration in all {
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
