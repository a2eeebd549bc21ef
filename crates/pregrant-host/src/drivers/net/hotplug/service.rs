//! One request, from its socket to the script's end.
//!
//! What a client may do: send one message, and close its connection, which ends the script. The
//! client gets "done", or a text that says why the request failed.

use super::{REQUEST_BYTES, Request, RequestError, Script};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time that a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the script is checked.
const CHECK: Duration = Duration::from_millis(50);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The given descriptor is not a socket, or the socket failed.
    #[error("the socket on standard input: {0}; this program is started by pregrant-hotplug.socket")]
    Socket(#[from] Errno),
    /// The request is from another user than this process's.
    #[error("refused: it was asked for by user {0}, and only this service's own user may ask")]
    Stranger(u32),
    /// No request arrived in time.
    #[error("no request arrived within {} s", PATIENCE.as_secs())]
    Silent,
    /// The message is not a valid request.
    #[error("refused: {0}")]
    Request(#[from] RequestError),
    /// The request is for something that the service does not do.
    #[error("refused: {0}")]
    Refused(String),
    /// The script failed.
    #[error("{0}")]
    Script(String),
    /// The client closed the connection.
    #[error("the backend that asked has closed its connection; the script was ended")]
    Gone,
}

/// The service that runs hotplug scripts for backends without privileges.
#[derive(Clone, Debug)]
pub struct Service {
    scripts: PathBuf,
    interfaces: PathBuf,
    /// The only user who may send requests, and to whom each script that is run must belong: root.
    user: u32,
}

impl Default for Service {
    fn default() -> Self {
        Self::new("/etc/xen/scripts", "/sys/class/net")
    }
}

impl Service {
    /// Runs scripts below `scripts`, for interfaces that exist below `interfaces`.
    pub fn new(scripts: impl Into<PathBuf>, interfaces: impl Into<PathBuf>) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { scripts: scripts.into(), interfaces: interfaces.into(), user }
    }

    /// Serves the one request on `socket`, and writes its result there.
    ///
    /// # Errors
    /// See [`ServiceError`]. The client gets the error, too, if it is still connected.
    pub fn serve(&self, socket: impl AsFd) -> Result<Request, ServiceError> {
        let served = self.run(&socket);
        let answer = match &served {
            Ok(_) => "done".to_string(),
            Err(why) => format!("failed: {why}"),
        };
        let bytes = answer.as_bytes();
        // The client may be gone.
        let _ = send(
            &socket,
            &bytes[..bytes.len().min(REQUEST_BYTES)],
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        served
    }

    fn run(&self, socket: &impl AsFd) -> Result<Request, ServiceError> {
        let asker = rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw();
        if asker != self.user {
            return Err(ServiceError::Stranger(asker));
        }
        if !readable(socket, PATIENCE)? {
            return Err(ServiceError::Silent);
        }
        // A message that is longer is cut, and refused for its length.
        let mut message = [0; REQUEST_BYTES + 1];
        let (n, _) = recv(socket, &mut message, RecvFlags::DONTWAIT)?;
        let request = Request::parse(message.get(..n).unwrap_or_default())?;
        self.check(&request)?;
        let mut script = Script::start(&request).map_err(ServiceError::Script)?;
        loop {
            match script.turn() {
                Some(Ok(())) => return Ok(request),
                Some(Err(why)) => return Err(ServiceError::Script(why)),
                None => {}
            }
            // The client sends nothing more, so this is most likely the end of the connection.
            if readable(socket, CHECK)? {
                script.end();
                return Err(ServiceError::Gone);
            }
        }
    }

    /// Checks that a well-formed request may be executed.
    ///
    /// # Errors
    /// [`ServiceError::Refused`]: the script is not one of the administrator's below the folder of
    /// scripts, or the interface is one that is no tap.
    pub fn check(&self, request: &Request) -> Result<(), ServiceError> {
        let refused = |why: String| Err(ServiceError::Refused(why));
        let script = Path::new(&request.script);
        if script.strip_prefix(&self.scripts).map_or(true, |name| name.components().count() != 1) {
            return refused(format!("{} is not in {}", script.display(), self.scripts.display()));
        }
        // Symbolic links are not followed: they could lead anywhere.
        match std::fs::symlink_metadata(script) {
            Ok(file) if !file.is_file() => return refused(format!("{} is no plain file", script.display())),
            Ok(file) if file.uid() != self.user || file.mode() & 0o022 != 0 => {
                return refused(format!(
                    "{} belongs to another user than this service's, or others may write to it",
                    script.display()
                ));
            }
            Ok(_) => {}
            Err(e) => return refused(format!("{}: {e}", script.display())),
        }
        // The machine's own interfaces are no one's vifs. One that is gone may be unplugged.
        let interface = self.interfaces.join(&request.vif);
        if interface.exists() && !interface.join("tun_flags").exists() {
            return refused(format!("{} is an interface of this machine, and no tap", request.vif));
        }
        Ok(())
    }
}

/// True if data arrived, or the other end closed the connection, within `time`.
fn readable(socket: &impl AsFd, time: Duration) -> Result<bool, Errno> {
    let time = Timespec::try_from(time).ok();
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut fds, time.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::net::hotplug::What;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn another_user_is_not_served() {
        let service = Service { user: rustix::process::geteuid().as_raw() + 1, ..Service::default() };
        let (asker, served) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let request = Request {
            what: What::Online,
            script: "/etc/xen/scripts/vif-bridge".into(),
            vif: "vif5.0".into(),
            dir: "/local/domain/0/backend/vif/5/0".into(),
        };
        send(&asker, request.encode().as_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(service.serve(&served), Err(ServiceError::Stranger(_))));
        let mut answer = [0; REQUEST_BYTES];
        let (n, _) = recv(&asker, &mut answer, RecvFlags::DONTWAIT).unwrap();
        assert!(answer[..n].starts_with(b"failed: refused: it was asked for by user"), "{answer:?}");
    }
}
