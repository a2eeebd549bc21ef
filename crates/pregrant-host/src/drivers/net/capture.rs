//! A remote side of whose vifs some have a capture file.
//!
//! ```text
//!   before anything begins   CaptureFile::open     each file can be made; a predecessor may still write to it
//!   found, plug, ...         answered by the remote side inside
//!   connected                its ports, each within a Pcap; all connects of a vif go into one file
//!   control turns            what is buffered is written; a failure is logged at the vif's expense, once
//! ```
//! A file on a disk has a limit, at which its capture ends; what reads a pipe has its own.
//!
//! What a guest may do: make its file as long as that. Its worker writes there, and the
//! control thread what is buffered, one at a time: a slow disk makes the worker's other vifs slow,
//! and keeps control from all. A pipe that is full ends the capture.

use super::port_provider::{PortProvider, Ports};
use crate::drivers::device_class::RemoteSide;
use crate::ports::pcap::{Capture, End, Pcap, WHOLE_FRAMES};
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// An open capture file whose old content is not overwritten yet.
#[derive(Debug)]
pub struct CaptureFile {
    /// The guest's domain id and the number of its vif.
    vif: (u16, u32),
    path: PathBuf,
    file: File,
}

impl CaptureFile {
    /// Opens or makes the capture file for vif `handle` of guest `front`. Only its owner can read
    /// it, since it will contain the guest's traffic.
    ///
    /// # Errors
    /// The file cannot be opened: the reason in words, with the path.
    pub fn open(front: u16, handle: u32, path: PathBuf) -> Result<Self, String> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        // A pipe without a reader, or with a slow one, must not block the backend.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        match options.open(&path) {
            Ok(file) => Ok(Self { vif: (front, handle), path, file }),
            Err(e) => Err(cannot(&path, &e)),
        }
    }

    /// Empties the file and starts a capture of at most `limit` bytes.
    fn begin(self, limit: u64) -> io::Result<Capture<File>> {
        let mut most = u64::MAX;
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            most = limit;
        }
        Capture::new(self.file, WHOLE_FRAMES, most)
    }

    /// Returns the device and the inode of the file; None: it is not a regular file.
    fn number(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().filter(|of| of.is_file()).map(|of| (of.dev(), of.ino()))
    }
}

fn cannot(path: &std::path::Path, e: &io::Error) -> String {
    format!("{}: the capture file cannot be made: {e}", path.display())
}

/// The capture of one vif's frames.
struct Capturing {
    path: PathBuf,
    capture: Capture<File>,
    /// The captured vif; None until it was connected for the first time.
    id: Option<DeviceId>,
}

/// Ports that write their frames to capture files, around another provider of ports.
pub struct Captured {
    inner: Box<dyn PortProvider>,
    vifs: BTreeMap<(u16, u32), Capturing>,
}

impl Captured {
    /// Captures vifs of `inner`. Overwrites the files; each gets at most `limit` bytes.
    ///
    /// # Errors
    /// A file cannot be written or is given for two vifs, or a vif has two: the reason in words.
    pub fn new(inner: Box<dyn PortProvider>, files: Vec<CaptureFile>, limit: u64) -> Result<Self, String> {
        for (i, one) in files.iter().enumerate() {
            for other in &files[..i] {
                let (front, handle) = one.vif;
                if one.vif == other.vif {
                    return Err(format!("vif {front}.{handle} has two capture files; choose one"));
                }
                if one.number().is_some_and(|number| other.number() == Some(number)) {
                    let path = one.path.display();
                    return Err(format!("{path}: two vifs cannot share a capture file; give each its own"));
                }
            }
        }
        let mut vifs = BTreeMap::new();
        for file in files {
            let (vif, path) = (file.vif, file.path.clone());
            let capture = file.begin(limit).map_err(|e| cannot(&path, &e))?;
            vifs.insert(vif, Capturing { path, capture, id: None });
        }
        Ok(Self { inner, vifs })
    }
}

impl PortProvider for Captured {
    fn inner_provider(&mut self) -> Option<&mut dyn PortProvider> {
        Some(&mut *self.inner)
    }
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        let ports = self.inner.connected(id, queues, front)?;
        let Some(capturing) = self.vifs.get_mut(&(id.front.0, id.handle)) else { return Ok(ports) };
        capturing.id = Some(*id);
        let captured = |port| Box::new(Pcap::new(port, &capturing.capture)) as Box<dyn FramePort>;
        Ok(ports.into_iter().map(captured).collect())
    }
}

impl RemoteSide for Captured {
    fn inner_remote(&mut self) -> Option<&mut dyn RemoteSide> {
        Some(&mut *self.inner)
    }
    fn failures(&mut self) -> Vec<(DeviceId, String)> {
        let mut failures = self.inner.failures();
        for Capturing { path, capture, id } in self.vifs.values() {
            capture.flush();
            if let Some((id, end)) = id.zip(capture.ended()) {
                let path = path.display();
                failures.push((
                    id,
                    match end {
                        End::Failed(e) => format!("the capture into {path} has ended: {e}; the vif's frames go on"),
                        End::Limit(bytes) => format!(
                            "the capture into {path} has ended at its limit of {bytes} bytes; the vif's frames go on"
                        ),
                    },
                ));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::net::port_provider::unplugged;
    use std::fs;

    #[test]
    fn each_vif_has_a_file_of_its_own_that_begins_again() {
        let dir = std::env::temp_dir().join(format!("pregrant-captured-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [a, b] = ["a.pcap", "b.pcap"].map(|name| dir.join(name));
        fs::write(&a, [7; 100]).unwrap();
        let provider = || Box::new(|_: &DeviceId, queues, _| unplugged(queues));
        let all = |files: &[(u32, &PathBuf)]| -> Result<Captured, String> {
            let open = |(handle, path): &(u32, &PathBuf)| CaptureFile::open(5, *handle, path.to_path_buf());
            Captured::new(provider(), files.iter().map(open).collect::<Result<_, _>>()?, u64::MAX)
        };
        let why = |files: &[(u32, &PathBuf)]| all(files).map(|_| ()).unwrap_err();
        assert_eq!(why(&[(0, &a), (0, &b)]), "vif 5.0 has two capture files; choose one");
        assert!(why(&[(0, &a), (1, &b), (2, &a)]).starts_with(&format!("{}: two vifs", a.display())));
        assert_eq!(fs::read(&a).unwrap(), [7; 100], "nothing has started");
        // A file that cannot be written is an error, and no pipe is waited for.
        let full = PathBuf::from("/dev/full");
        assert!(why(&[(0, &full)]).starts_with("/dev/full: the capture file cannot be made: No space left"));
        let pipe = dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(why(&[(0, &pipe)]).contains("pipe: the capture file cannot be made: No such device"));
        all(&[(0, &a), (1, &b)]).unwrap();
        for file in [&a, &b] {
            assert_eq!(fs::read(file).unwrap().len(), 24);
        }
        assert_eq!(fs::metadata(&b).unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(&dir).unwrap();
    }
}
