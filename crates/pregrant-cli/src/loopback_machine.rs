//! A loopback machine as a process on it sees it: its sockets in a directory, whose it is, and why
//! it cannot be used. `pregrant-lab loopback serve` runs one.
//!
//! ```text
//!   DIR/broker.sock      processes attach to domains
//!   DIR/xenstored.sock   xenstore as domain 0: the toolstack's, and Xen's own tools'
//!   DIR/back-0.status    what the backend of domain 0 tells, while one runs
//! ```

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_loopback::{BROKER_SOCKET, Control, Loopback, LoopbackError};
use rustix::io::Errno;
use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The machine that a process was attached to has ended, which the process could not prevent.
#[derive(Debug)]
pub struct MachineEnded(PathBuf);

/// Exit code if the loopback machine has ended.
pub const MACHINE_ENDED: u8 = 3;

impl std::fmt::Display for MachineEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the machine in {} has ended, and its domains with it; to go on: pregrant-lab loopback serve --dir {}, then this again",
            self.0.display(),
            shell_word(&self.0)
        )
    }
}

impl Error for MachineEnded {}

/// Returns the error of a process on the machine in `dir`. If the machine is gone, the error says
/// so, since that explains more than the error that followed from it.
pub fn ended_or(dir: &Path, why: Box<dyn Error>) -> Box<dyn Error> {
    // Its owner closes one before the other.
    let store = UnixTransport::connect(store_socket(dir));
    if store.is_err() || Control::connect(&broker_socket(dir)).is_err() {
        return MachineEnded(dir.into()).into();
    }
    why
}

/// Quotes a path as a word of a shell command.
pub fn shell_word(path: &Path) -> String {
    let shown = path.display().to_string();
    match shlex::try_quote(&shown) {
        Ok(word) => word.into_owned(),
        // With a NUL no command can have it.
        Err(_) => shown,
    }
}

/// The domain id of the domain that serves devices.
pub const DRIVER: DomId = DomId(0);

/// Returns the path of the socket on which processes attach.
pub fn broker_socket(dir: &Path) -> PathBuf {
    dir.join(BROKER_SOCKET)
}

/// Returns the path of the xenstore socket of domain 0.
pub fn store_socket(dir: &Path) -> PathBuf {
    dir.join("xenstored.sock")
}

/// Returns the xenstore connection that belongs to an attachment. It is there only once.
pub fn store_of(platform: &Loopback) -> Result<Client<UnixTransport>> {
    let fd = platform.take_store_fd().ok_or("the broker has no xenstore")?;
    Ok(Client::new(UnixTransport::new(fd)?))
}

/// Parses a guest's number. The numbers 0 and those from 0x7ff0 on are Xen's own.
pub fn guest_domid(text: &str) -> std::result::Result<u16, String> {
    match text.parse() {
        Ok(domid @ 1..0x7FF0) => Ok(domid),
        _ => Err("a guest's number is 1 to 32751".into()),
    }
}

/// The explanation why `--domain` has no effect without `--loopback`.
pub const NO_DOMAIN: &str =
    "on Xen the guest is the domain in which this runs (for a guest of a loopback machine: --loopback DIR)";

/// Creates the error that says why a process cannot attach to the machine in `dir`, and what to do.
pub fn no_machine(dir: &Path, why: LoopbackError) -> Box<dyn Error> {
    let dir_shown = dir.display();
    let remedy = format!("start one first: pregrant-lab loopback serve --dir {}", shell_word(dir));
    match why {
        // First: of what is in a directory that may not be entered nothing is known.
        LoopbackError::NoBroker { path, source: source @ (Errno::ACCESS | Errno::PERM) } => format!(
            "{}: {source}: who serves the machine in {dir_shown}, or root, may use it; run this as that user",
            path.display()
        )
        .into(),
        LoopbackError::NoBroker { .. } if !dir.is_dir() => {
            format!("{dir_shown}: no such directory, so no machine; {remedy}").into()
        }
        LoopbackError::NoBroker { source, .. } => {
            format!("{dir_shown}: no machine runs here ({source}); {remedy}").into()
        }
        other => other.into(),
    }
}

/// The argument of [`only_ours`] for a process that runs hotplug scripts.
pub const RUN_PROGRAMS: &str = "run programs";

/// Refuses a machine's directory that does not belong to this user, or in which others may put
/// another machine's sockets. The machine's xenstore names scripts, bridges and images, and any of
/// its owner's processes can write them. `does` is the text that describes what this process does
/// with these names.
pub fn only_ours(dir: &Path, does: &str) -> Result<()> {
    let shown = dir.display();
    if dir.metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        let (path, source) = (broker_socket(dir), Errno::NOENT);
        return Err(no_machine(dir, LoopbackError::NoBroker { path, source }));
    }
    let user = rustix::process::geteuid().as_raw();
    let of_ours = |found: std::io::Result<std::fs::Metadata>| -> Result<std::fs::Metadata> {
        let found =
            found.map_err(|e| format!("{shown}: {e}, so the owner of the machine in it is unknown"))?;
        if found.uid() == user {
            return Ok(found);
        }
        let other = found.uid();
        Err(format!(
            "{shown}: refused, for it is user {other}'s and this process is user {user}'s: who owns a machine's directory \
             may have this process {does} as user {user}; run this as user {other}, or name a directory of your own that \
             only you may write to"
        )
        .into())
    };
    // First: the owner of a symbolic link may have it lead elsewhere after this.
    of_ours(dir.symlink_metadata())?;
    let found = of_ours(dir.metadata())?;
    if found.mode() & 0o022 != 0 {
        return Err(format!(
            "{shown}: refused: others may write there (mode {:04o}), and could put a machine of theirs into it, by which this \
             process would be made to {does} as user {user}; chmod go-w {}, or name a directory that only you may write to",
            found.mode() & 0o7777,
            shell_word(dir)
        )
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        let words = ["/tmp/xen", "/tmp/my xen", "/tmp/it's;rm"].map(|path| shell_word(Path::new(path)));
        assert_eq!(words[0], "/tmp/xen");
        for (word, path) in words.iter().zip(["/tmp/xen", "/tmp/my xen", "/tmp/it's;rm"]) {
            assert_eq!(shlex::split(word), Some(vec![path.to_string()]));
        }
    }

    /// Tests a directory that may not be entered, one that does not exist, and one without a
    /// machine.
    #[test]
    fn a_machine_that_may_not_be_used_is_no_absent_one() {
        let here = std::env::temp_dir();
        let of = |dir: &Path, source| {
            let path = broker_socket(dir);
            no_machine(dir, LoopbackError::NoBroker { path, source }).to_string()
        };
        for dir in [Path::new("/nonexistent/xen"), &here] {
            let denied = of(dir, Errno::ACCESS);
            let socket = broker_socket(dir);
            assert!(denied.starts_with(&format!("{}: Permission denied", socket.display())), "{denied}");
            assert!(denied.contains("run this as that user") && !denied.contains("start one"), "{denied}");
        }
        assert!(of(Path::new("/nonexistent/xen"), Errno::NOENT).contains("no such directory"));
        assert!(of(&here, Errno::CONNREFUSED).contains("no machine runs here"));
    }
}
