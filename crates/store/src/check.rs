//! Reading the whole file before trusting it.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::error::{Corruption, Fault, OpenError};
use super::record::{FETCH, Record, engine, meta_sum, signed, unsigned};
use super::writer::Start;

/// Checks every row and every link between rows, and says where the store stands.
pub(super) fn check(conn: &Connection, path: &Path) -> Result<Start, OpenError> {
    conn.execute_batch("BEGIN").map_err(OpenError::engine("reading", path))?;
    let checked = check_snapshot(conn, path);
    conn.execute_batch("COMMIT").map_err(OpenError::engine("reading", path))?;
    // A disk that cannot be read says nothing about what is on it.
    checked.map_err(|fault| OpenError::fault(path, fault))
}

fn check_snapshot(conn: &Connection, path: &Path) -> Result<Start, Fault> {
    check_schema(conn, path)?;
    let compacted = meta(conn, path, "compacted")?;
    let swept = meta(conn, path, "swept")?;
    if meta(conn, path, "sum")? != u64::from(meta_sum(compacted, swept)) || swept > compacted {
        return Err(Corruption::whole(path, "the checksum of the compacted revision does not match").into());
    }
    let log = check_log(conn, path, swept, compacted)?;
    check_cur(conn, path, log.newest)?;
    let revision = log.last.max(compacted);
    Ok(Start { revision, compacted, swept, history_bytes: log.history_bytes })
}

/// A trigger or view in a file from elsewhere would act with every write.
fn check_schema(conn: &Connection, path: &Path) -> Result<(), Fault> {
    let strange = conn.query_row(
        "SELECT type || ' ' || name FROM sqlite_schema
         WHERE type NOT IN ('table', 'index') OR tbl_name NOT IN ('meta', 'log', 'cur') OR type = 'index' AND sql IS NOT NULL
         LIMIT 1",
        [],
        |row| row.get::<_, String>(0),
    );
    match strange.optional().map_err(engine(path))? {
        Some(what) => Err(Corruption::whole(path, format!("no store has a {what:?}")).into()),
        None => Ok(()),
    }
}

/// What one walk over the log found.
struct Log {
    last: u64,
    /// Rows that no other row supersedes: one for every key.
    newest: u64,
    history_bytes: u64,
}

fn check_log(conn: &Connection, path: &Path, swept: u64, compacted: u64) -> Result<Log, Fault> {
    let mut log = Log { last: swept, newest: 0, history_bytes: 0 };
    let sql = FETCH.replace("WHERE rev = ?1", "ORDER BY rev");
    let mut rows = conn.prepare(&sql).map_err(engine(path))?;
    let mut rows = rows.query([]).map_err(engine(path))?;
    let mut key_of = conn.prepare("SELECT key FROM log WHERE rev = ?1").map_err(engine(path))?;
    while let Some(row) = rows.next().map_err(engine(path))? {
        let record = Record::read(row, path)?;
        log.newest += 1;
        if record.head.rev <= swept {
            continue;
        }
        if record.head.rev != log.last + 1 {
            return Err(Corruption::new(path, log.last + 1, "the row is missing").into());
        }
        log.last = record.head.rev;
        if record.head.rev > compacted {
            log.history_bytes += (record.key.len() + record.value.len()) as u64;
        }
        if record.head.prev_rev != 0 {
            let query = key_of.query_row([signed(record.head.prev_rev)], |row| row.get::<_, String>(0));
            let previous = query.optional().map_err(engine(path))?;
            if previous.as_deref() != Some(&*record.key) {
                let what = format!("the row that {:?} had before is missing", record.key);
                return Err(Corruption::new(path, record.head.prev_rev, what).into());
            }
            log.newest -= 1;
        }
    }
    Ok(log)
}

fn check_cur(conn: &Connection, path: &Path, newest: u64) -> Result<(), Fault> {
    let stray = conn.query_row(
        "SELECT c.rev, c.key FROM cur c LEFT JOIN log l ON l.rev = c.rev
         WHERE l.rev IS NULL OR l.key <> c.key OR l.dead <> c.dead LIMIT 1",
        [],
        |row| Ok((unsigned(row, 0)?, row.get::<_, String>(1)?)),
    );
    if let Some((rev, key)) = stray.optional().map_err(engine(path))? {
        return Err(Corruption::new(path, rev, format!("it is not the row of {key:?} it should be")).into());
    }
    let count = conn.query_row("SELECT count(*) FROM cur", [], |row| unsigned(row, 0));
    let count = count.map_err(engine(path))?;
    if count != newest {
        return Err(Corruption::whole(path, format!("{newest} keys were written, {count} are known")).into());
    }
    Ok(())
}

fn meta(conn: &Connection, path: &Path, name: &str) -> Result<u64, Fault> {
    conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| unsigned(row, 0))
        .map_err(engine(path))
}
