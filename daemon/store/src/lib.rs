//! The encrypted store: a journal that is also the audit log, and an index.
//!
//! One writer thread owns the journal. What is written is a [`Batch`]: audit
//! entries and mutations of rows that count together or not at all.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod create;
mod disk;
mod error;
mod index;
mod keys_file;
mod log;
mod open;
mod rows;
mod segment;
#[cfg(feature = "sim")]
pub mod sim;
mod store;
mod typed;
mod writer;

pub use create::create;
pub use disk::{Disk, DiskFile, RealDisk};
pub use error::StoreError;
pub use keys_file::{read_header, write_header};
pub use log::AuditLog;
pub use rows::{Table, Write};
pub use store::{Appended, Figures, Opened, Options, StampClock, Store};
pub use typed::{inbox, memory, outbox, sessions};
pub use writer::Batch;
