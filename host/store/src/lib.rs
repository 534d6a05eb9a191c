//! Where sessions live: the port [`mainstay_core::port::Store`] over SQLite and over Postgres.
//!
//! A store adds durability and nothing else. What may be written is judged by
//! [`mainstay_core::commit::apply`], what a row says follows from [`mainstay_core::project`]; neither
//! is repeated in SQL. Read [`sqlite`] and [`postgres`] for the shape of each, [`lock`] for how one
//! process owns a file.

mod examine;
pub mod lock;
pub mod moving;
pub mod postgres;
mod retention;
mod rows;
pub mod sqlite;
mod value;

pub use postgres::PostgresStore;
pub use retention::{Retained, Retention};
pub use sqlite::backup::{BackupError, Copied};
pub use sqlite::direct::is_broken;
pub use sqlite::doctor::Report;
pub use sqlite::gc::{Collected, Component};
pub use sqlite::{OpenError, Options, SqliteStore, Stats};
