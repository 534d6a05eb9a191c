//! Statements with their arguments, sent in one message each. Prepared and bound by default. Behind a
//! pooler that hands each transaction to another connection there are no prepared statements to rely
//! on (not even unnamed ones: parsing and binding are two messages), so there the arguments are written
//! into the text as literals.

use std::fmt::Write as _;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use uuid::Uuid;

/// An argument.
#[derive(Clone, Debug)]
pub(super) enum Arg {
    Uuid(Option<Uuid>),
    Uuids(Option<Vec<Uuid>>),
    Int(Option<i64>),
    Bool(Option<bool>),
    Text(Option<String>),
    Texts(Option<Vec<String>>),
    /// As JSON text; the statement takes it as `jsonb`.
    Json(Option<String>),
    Bytes(Vec<u8>),
}

macro_rules! from {
    ($($from:ty => $variant:ident),*) => { $(
        impl From<$from> for Arg {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
        impl From<Option<$from>> for Arg {
            fn from(value: Option<$from>) -> Self {
                Self::$variant(value.map(Into::into))
            }
        }
    )* };
}

from!(Uuid => Uuid, Vec<Uuid> => Uuids, i64 => Int, bool => Bool, String => Text, Vec<String> => Texts);

impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.into()))
    }
}

/// A text with `$1`, `$2` and so on, and what they stand for.
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) args: Vec<Arg>,
}

impl Statement {
    pub(super) fn new(sql: &'static str) -> Self {
        Self {
            sql,
            args: Vec::new(),
        }
    }

    pub(super) fn bind(mut self, arg: impl Into<Arg>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Runs it in a transaction of its own and gives its rows.
    pub(super) async fn rows(
        &self,
        conn: &mut PgConnection,
        prepared: bool,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        if !prepared {
            return conn
                .fetch_all(sqlx::raw_sql(AssertSqlSafe(self.text())))
                .await;
        }
        let mut query = sqlx::query(self.sql);
        for arg in &self.args {
            query = match arg {
                Arg::Uuid(value) => query.bind(value),
                Arg::Uuids(value) => query.bind(value),
                Arg::Int(value) => query.bind(value),
                Arg::Bool(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::Texts(value) => query.bind(value),
                Arg::Json(value) => query.bind(value.as_deref().map(json)),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query.fetch_all(conn).await
    }

    /// The text with its arguments in it.
    fn text(&self) -> String {
        let mut text = String::with_capacity(self.sql.len() + 64 * self.args.len());
        let mut rest = self.sql;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            let digits = rest[at + 1..]
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len() - at - 1);
            let name = &rest[at + 1..at + 1 + digits];
            let number: usize = name.parse().expect("a number follows `$`");
            literal(&mut text, &self.args[number - 1]);
            rest = &rest[at + 1 + digits..];
        }
        text.push_str(rest);
        text
    }
}

/// Binds text that is known to be JSON, as it is.
fn json(text: &str) -> sqlx::types::Json<&serde_json::value::RawValue> {
    sqlx::types::Json(serde_json::from_str(text).expect("made by a serialiser"))
}

fn literal(text: &mut String, arg: &Arg) {
    match arg {
        Arg::Uuid(value) => option(text, value.as_ref(), "uuid", |text, value| {
            let _ = write!(text, "'{value}'");
        }),
        Arg::Uuids(value) => option(text, value.as_ref(), "uuid[]", |text, value| {
            list(text, value, |text, id| {
                let _ = write!(text, "'{id}'");
            });
        }),
        Arg::Int(value) => option(text, value.as_ref(), "bigint", |text, value| {
            let _ = write!(text, "({value})");
        }),
        Arg::Bool(value) => option(text, value.as_ref(), "boolean", |text, value| {
            let _ = write!(text, "{value}");
        }),
        Arg::Text(value) => option(text, value.as_ref(), "text", |text, value| {
            quoted(text, value)
        }),
        Arg::Texts(value) => option(text, value.as_ref(), "text[]", |text, value| {
            list(text, value, |text, one| quoted(text, one));
        }),
        Arg::Json(value) => option(text, value.as_ref(), "jsonb", |text, value| {
            quoted(text, value)
        }),
        Arg::Bytes(value) => {
            text.push_str("'\\x");
            for byte in value {
                let _ = write!(text, "{byte:02x}");
            }
            text.push_str("'::bytea");
        }
    }
}

fn option<T: ?Sized>(
    text: &mut String,
    value: Option<&T>,
    kind: &str,
    write: impl FnOnce(&mut String, &T),
) {
    match value {
        Some(value) => write(text, value),
        None => text.push_str("NULL"),
    }
    text.push_str("::");
    text.push_str(kind);
}

fn list<T>(text: &mut String, values: &[T], write: impl Fn(&mut String, &T)) {
    text.push_str("ARRAY[");
    for (n, value) in values.iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        write(text, value);
    }
    text.push(']');
}

/// Right whatever `standard_conforming_strings` is.
fn quoted(text: &mut String, value: &str) {
    text.push_str("E'");
    for c in value.chars() {
        if matches!(c, '\'' | '\\') {
            text.push(c);
        }
        text.push(c);
    }
    text.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_cannot_be_left() {
        let statement = Statement::new("SELECT $1, $2, $10, $3, $4, $5, $6, $7, $8, $9")
            .bind("a'b\\'; DROP TABLE event; -- $2")
            .bind(-1_i64)
            .bind(None::<String>)
            .bind(vec!["x'".to_owned(), "\\".to_owned()])
            .bind(vec![Uuid::nil()])
            .bind(true)
            .bind(Arg::Bytes(vec![0, 255]))
            .bind(Arg::Json(Some("{\"a\":\"\\u0000'\"}".into())))
            .bind(None::<Vec<Uuid>>)
            .bind(Uuid::nil());
        assert_eq!(
            statement.text(),
            "SELECT E'a''b\\\\''; DROP TABLE event; -- $2'::text, (-1)::bigint, \
             '00000000-0000-0000-0000-000000000000'::uuid, NULL::text, \
             ARRAY[E'x''',E'\\\\']::text[], ARRAY['00000000-0000-0000-0000-000000000000']::uuid[], \
             true::boolean, '\\x00ff'::bytea, E'{\"a\":\"\\\\u0000''\"}'::jsonb, NULL::uuid[]"
        );
    }
}
