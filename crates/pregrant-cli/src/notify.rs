//! What systemd is told of this process: `sd_notify`'s protocol, one datagram for each news.
//!
//! ```text
//!   READY=1                             the units after it may start: guests are served
//!   STATUS=vifs: 3, connected: 2         `systemctl status` shows it
//!   STOPPING=1                          asked to end; what guests sent is being answered
//! ```
//! Without `NOTIFY_SOCKET` in the environment nobody asked, and nothing is said.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Between two looks at the status.
const EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    status: String,
    looked: Option<Instant>,
}

impl Notify {
    /// Whoever started this process, if it wants to know.
    pub fn from_environment() -> Self {
        std::env::var_os("NOTIFY_SOCKET").map_or_else(Self::default, |path| Self::to(&path))
    }

    fn to(path: &OsString) -> Self {
        let open = || {
            let address = match path.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                _ => SocketAddr::from_pathname(path)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A reader that is late is not waited for.
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((socket, address))
        };
        let to = open().inspect_err(|e| log::warn!("NOTIFY_SOCKET {}: {e}", path.display())).ok();
        Self { to, ..Self::default() }
    }

    /// It serves.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// It was asked to end.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// When it wants to look at the status again, though nothing happens. None: nobody wants to know.
    pub fn due(&self) -> Option<Duration> {
        self.to.as_ref().map(|_| EVERY)
    }

    /// What it does, in a line; asked for once a second at most, and told when it is another than before.
    pub fn status(&mut self, now: Instant, text: impl FnOnce() -> String) {
        let early = self.looked.is_some_and(|at| now.saturating_duration_since(at) < EVERY);
        if early || self.to.is_none() {
            return;
        }
        self.looked = Some(now);
        let text = text();
        if text != self.status {
            self.say(&format!("STATUS={text}"));
            self.status = text;
        }
    }

    fn say(&self, text: &str) {
        let Some((socket, to)) = &self.to else { return };
        if let Err(e) = socket.send_to_addr(text.as_bytes(), to) {
            log::debug!("systemd is not told {text}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> Option<String> {
        let mut text = [0; 256];
        let n = socket.recv(&mut text).ok()?;
        Some(String::from_utf8(text[..n].to_vec()).unwrap())
    }

    #[test]
    fn what_is_new_is_said_once() {
        let path = std::env::temp_dir().join(format!("pregrant-notify-{}.sock", std::process::id()));
        let abstract_name = format!("pregrant-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let hidden =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        let ends = [(at_path, OsString::from(&path)), (hidden, OsString::from(format!("@{abstract_name}")))];
        for (socket, name) in &ends {
            socket.set_nonblocking(true).unwrap();
            let mut notify = Notify::to(name);
            let start = Instant::now();
            notify.ready();
            assert_eq!(heard(socket).as_deref(), Some("READY=1"));
            for (seconds, text, said) in [
                (0, "no vifs", Some("STATUS=no vifs")),
                (0, "too early", None),
                (1, "no vifs", None),
                (2, "1 vif", Some("STATUS=1 vif")),
            ] {
                notify.status(start + Duration::from_secs(seconds), || text.into());
                assert_eq!(heard(socket).as_deref(), said, "{text} at {seconds}");
            }
            notify.stopping();
            assert_eq!(heard(socket).as_deref(), Some("STOPPING=1"));
        }
        let _ = std::fs::remove_file(&path);
        // Nobody asked, or nobody is there: nothing is said, and nothing fails.
        let mut alone = Notify::default();
        alone.ready();
        alone.status(Instant::now(), || unreachable!("nobody reads it"));
        Notify::to(&OsString::from(&path)).ready();
    }
}
