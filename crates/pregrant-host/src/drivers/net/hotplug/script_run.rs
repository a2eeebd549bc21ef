//! A script that the hotplug service runs for this process.

use super::script::SCRIPT;
use super::{REQUEST_BYTES, Request};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that the service may need in addition to the script's own.
const GRACE: Duration = Duration::from_secs(5);

/// A request that was sent to the service. No call blocks.
#[derive(Debug)]
pub struct Asked {
    /// Connection to the service; None: the request has ended.
    socket: Option<OwnedFd>,
    began: Instant,
}

impl Asked {
    /// Sends a request to the service at `path`. None: its queue is full; try again later.
    ///
    /// # Errors
    /// The service does not run, or the request cannot be sent; the reason in words.
    pub fn of(path: &Path, request: &Request) -> Result<Option<Self>, String> {
        let asked = || -> Result<OwnedFd, Errno> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            send(&socket, request.encode().as_bytes(), SendFlags::NOSIGNAL)?;
            Ok(socket)
        };
        match asked() {
            Ok(socket) => Ok(Some(Self { socket: Some(socket), began: Instant::now() })),
            // The service's queue of connections is full.
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => {
                let remedy = match e {
                    Errno::NOENT | Errno::CONNREFUSED => "; systemctl start pregrant-hotplug.socket",
                    _ => "",
                };
                Err(format!("cannot be asked for at {}: {e}{remedy}", path.display()))
            }
        }
    }

    /// Returns the script's result, or None while it runs.
    pub fn turn(&mut self) -> Option<Result<(), String>> {
        let ended = || Err("was ended, without an answer from the hotplug service".to_string());
        let Some(socket) = &self.socket else { return Some(ended()) };
        let mut message = [0; REQUEST_BYTES];
        let answer = match recv(socket, &mut message, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) if self.began.elapsed() < SCRIPT + GRACE => return None,
            Err(Errno::AGAIN | Errno::INTR) => Err("timed out".into()),
            Err(_) | Ok((0, _)) => ended(),
            Ok((n, _)) => match message.get(..n) {
                Some(b"done") => Ok(()),
                Some(why) => Err(plain(why)),
                None => ended(),
            },
        };
        self.socket = None;
        Some(answer)
    }

    /// Closes the connection: the service kills a script that no one waits for.
    pub fn end(&mut self) {
        self.socket = None;
    }
}

/// Makes the service's answer fit for the log and the store.
fn plain(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.strip_prefix("failed: ").unwrap_or(&text);
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}
