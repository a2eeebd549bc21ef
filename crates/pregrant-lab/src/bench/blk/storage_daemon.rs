//! qemu-storage-daemon on a file in memory: an NBD server, or a vhost-user-blk one.
//!
//! ```text
//!   nbd             its one thread: socket, requests; threads of the kernel: FILE
//!   vhost-user-blk  an I/O thread, which polls: the ring, io_uring on FILE
//! ```
//! All of it is on the backend's core. Dropped, it is killed by its process's id.

use crate::bench::Result;
use crate::bench::core_placement::CorePlacement;
use crate::bench::program::{is_there, pinned};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Length of a file in bytes.
pub const FILE_BYTES: usize = 256 << 20;
/// The time that the daemon may need to create its socket.
const PATIENCE: Duration = Duration::from_secs(10);
const PROGRAM: &str = "qemu-storage-daemon";

/// A folder for files and sockets, in memory if possible; removed on drop.
pub struct Folder {
    pub dir: PathBuf,
    /// True if the folder is in memory (tmpfs).
    pub in_memory: bool,
}

impl Folder {
    /// Creates a folder of this name for this process.
    pub fn make(name: &str) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let in_memory = memory.is_dir();
        let base = if in_memory { memory.into() } else { std::env::temp_dir() };
        let dir = base.join(format!("pregrant-{name}-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        Ok(Self { dir, in_memory })
    }

    /// Creates a file with real bytes, since a hole in a file is not read from anywhere.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let mut file = File::create(&path)?;
        let block = vec![0x5a; 1 << 20];
        for _ in 0..FILE_BYTES / block.len() {
            file.write_all(&block).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The protocol by which a file is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Export {
    Nbd,
    /// The file is served by a ring in shared memory.
    VhostUser,
}

pub struct StorageDaemon(Child);

impl StorageDaemon {
    /// Starts to serve `file` on `socket`. `Err`: the reason why it cannot be served.
    pub fn start(export: Export, file: &Path, socket: &Path) -> std::result::Result<Self, String> {
        if !is_there(PROGRAM) {
            return Err(format!("{PROGRAM} is not installed (Debian: apt install qemu-system-common)"));
        }
        let failed = |e: std::io::Error| format!("cannot start {PROGRAM}: {e}");
        let core = CorePlacement::of(1).map_err(failed)?.workers.first().copied();
        let mut command = pinned(PROGRAM, core);
        arguments(&mut command, export, file, socket);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(failed)?;
        let mut daemon = Self(child);
        let until = Instant::now() + PATIENCE;
        while !socket.exists() {
            if let Ok(Some(status)) = daemon.0.try_wait() {
                return Err(format!("{PROGRAM} has ended ({status}); its lines are above"));
            }
            if Instant::now() > until {
                return Err(format!("{PROGRAM} has no socket after {PATIENCE:?}; its lines are above"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn arguments(command: &mut Command, export: Export, file: &Path, socket: &Path) {
    let (file, socket) = (file.display(), socket.display());
    let file = format!("driver=file,node-name=file,filename={file}");
    match export {
        Export::Nbd => {
            command.args(["--blockdev", &file, "--blockdev", "driver=raw,node-name=disk,file=file"]);
            command.args(["--nbd-server", &format!("addr.type=unix,addr.path={socket}")]);
            command.args(["--export", "type=nbd,id=disk,node-name=disk,writable=on,name=disk"]);
        }
        Export::VhostUser => {
            let file = format!("{file},aio=io_uring");
            command.args(["--object", "iothread,id=io"]);
            command.args(["--blockdev", &file, "--blockdev", "driver=raw,node-name=disk,file=file"]);
            let of = "type=vhost-user-blk,id=disk,node-name=disk,writable=on,iothread=io";
            command.args(["--export", &format!("{of},addr.type=unix,addr.path={socket}")]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vhost_user_server_has_a_thread_and_a_ring_to_the_kernel_of_its_own() {
        let mut command = Command::new(PROGRAM);
        arguments(&mut command, Export::VhostUser, Path::new("/f"), Path::new("/s"));
        let said: Vec<_> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        let said = said.join(" ");
        for part in ["iothread,id=io ", "filename=/f,aio=io_uring ", "iothread=io,", "addr.path=/s"] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }

    #[test]
    fn a_folder_is_gone_with_what_is_in_it() {
        let folder = Folder::make("test").unwrap();
        let dir = folder.dir.clone();
        std::fs::write(dir.join("x"), "x").unwrap();
        drop(folder);
        assert!(!dir.exists());
    }
}
