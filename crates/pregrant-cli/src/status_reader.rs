//! What backends tell of themselves, read from their sockets.
//!
//! A backend that does not answer in time, or says what is no status, is a line of its own and disturbs no other.

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{self, FORMAT};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a backend may take. An idle one looks for readers ten times a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a document at most.
const DOCUMENT_MAX: u64 = 16 << 20;

/// Why there is no status to be had.
#[derive(Debug)]
pub enum NoStatus {
    /// The socket is there, and nobody behind it.
    Dead,
    /// Anything else.
    Failed(String),
}

/// Asks the backend behind one socket.
pub fn read(socket: &Path) -> Result<BackStatus, NoStatus> {
    let failed = |why: String| NoStatus::Failed(format!("{}: {why}", socket.display()));
    let stream = UnixStream::connect(socket).map_err(|e| match e.kind() {
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => NoStatus::Dead,
        _ => failed(format!("cannot connect: {e}")),
    })?;
    let mut document = Vec::new();
    let read = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.take(DOCUMENT_MAX).read_to_end(&mut document));
    read.map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            failed("its backend does not answer; is the process stopped?".into())
        }
        _ => failed(e.to_string()),
    })?;
    // It died, or it turned us away because too many read at the same time.
    if document.is_empty() {
        return Err(failed("the backend closed the connection without an answer; try again".into()));
    }
    let status: BackStatus =
        serde_json::from_slice(&document).map_err(|e| failed(format!("not a backend's status: {e}")))?;
    if status.format != FORMAT {
        return Err(failed(format!(
            "format {} of another version of pregrant; this one reads {FORMAT}",
            status.format
        )));
    }
    Ok(status)
}

/// All backends that tell in `dir`, and what could not be read.
pub fn read_all(dir: &Path) -> std::io::Result<(Vec<BackStatus>, Vec<String>)> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for socket in status::sockets_in(dir)? {
        match read(&socket) {
            Ok(status) => found.push(status),
            Err(NoStatus::Dead) => {}
            Err(NoStatus::Failed(why)) => failed.push(why),
        }
    }
    Ok((found, failed))
}
