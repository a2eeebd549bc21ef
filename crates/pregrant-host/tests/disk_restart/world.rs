//! The machine of these tests: a guest with a disk, and backs in processes of their own.

use pregrant::DomId;
use pregrant::xenbus::toolstack::{self, Vbd};
use pregrant::xenbus::{Class, DeviceId, Side};
use pregrant_loopback::DomainSpec;
use pregrant_test_machine::processes::Host;
use std::fs::{File, OpenOptions};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use pregrant_test_machine::processes::{BACK, Back, client};

pub const GUEST: DomId = DomId(5);
pub const VBD: u32 = 51712;
/// The environment variable that bounds the length of files that a back writes to.
pub const LIMIT: &str = "PREGRANT_TEST_FILE_LIMIT";
/// The environment variable with which a back writes its log to its stderr.
pub const LOGS: &str = "PREGRANT_TEST_LOGS";

/// A file that is removed when dropped.
pub struct Image(pub PathBuf);

impl Image {
    pub fn new(bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // On a file system, where holes and direct I/O may be had.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("vbd-{}-{n}", std::process::id()));
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Self(path)
    }

    pub fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub struct World(Host);

impl Deref for World {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.0
    }
}

fn vbd() -> DeviceId {
    DeviceId { class: Class::VBD, front: GUEST, back: BACK, handle: VBD }
}

impl World {
    /// A guest with a disk, which it may write to.
    pub fn new(image: &Path) -> Self {
        Self::with(image, true)
    }

    pub fn with(image: &Path, writable: bool) -> Self {
        let mut world = Self(Host::start("disks"));
        world.attach(image, writable);
        world
    }

    fn attach(&mut self, image: &Path, writable: bool) {
        // A guest of that number that died just now is there until the broker has seen it.
        while self.0.broker.create_domain(DomainSpec::guest(GUEST)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let made = Vbd { writable, ..Vbd::new(GUEST, BACK, (VBD, "xvda"), image.to_str().unwrap()) };
        made.create(&mut self.0.toolstack).unwrap();
    }

    /// The guest is dead: the toolstack removes its disk without waiting, and creates another guest
    /// with a disk of the same number.
    pub fn reattach(&mut self, image: &Path) {
        toolstack::remove(&mut self.0.toolstack, &vbd()).unwrap();
        self.attach(image, true);
    }

    /// Starts a back; `crash` names the point at which it must die.
    pub fn back(&self, io: &str, path: &str, crash: Option<String>) -> Back {
        Back::start(self.child(&[io, path], crash).env_remove(LIMIT))
    }

    /// A backend that logs to this file.
    pub fn logged_back(&self, io: &str, log: &Path) -> Back {
        let log = File::create(log).unwrap();
        Back::start(self.child(&[io, "copy"], None).env_remove(LIMIT).env(LOGS, "1").stderr(log))
    }

    /// A backend that may make no file longer than this.
    pub fn limited_back(&self, io: &str, bytes: u64) -> Back {
        Back::start(self.child(&[io, "copy"], None).env(LIMIT, bytes.to_string()))
    }

    /// The last error that the back wrote about the disk to xenstore.
    pub fn error(&self) -> String {
        let mut xs = client(&self.0.broker.attach(BACK).unwrap());
        let said = xs.read_if_there(&vbd().error_path(Side::Back)).unwrap().unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// The guest is gone, or has closed its disk: removes the disk, and checks that nothing is left
    /// of it.
    pub fn end(mut self, back: Back) {
        self.remove_disk();
        self.finish(back);
    }

    /// The toolstack removes the disk, once its back has closed it.
    pub fn remove_disk(&mut self) {
        self.ask_for_removal();
        self.until_states([None, Some("6")]);
        toolstack::remove(&mut self.0.toolstack, &vbd()).unwrap();
    }

    /// Removes one end's directory.
    pub fn remove_side(&mut self, side: Side) {
        self.0.toolstack.rm(&vbd().dir(side)).unwrap();
    }

    /// The toolstack wants the disk gone, and has not waited yet.
    pub fn ask_for_removal(&mut self) {
        toolstack::request_removal(&mut self.0.toolstack, &vbd()).unwrap();
    }

    /// The states of the disk's front and back.
    pub fn states(&mut self) -> [Option<String>; 2] {
        [vbd().front_dir(), vbd().back_dir()].map(|dir| {
            let state = self.0.toolstack.read_if_there(&format!("{dir}/state")).unwrap();
            state.map(|state| String::from_utf8(state).unwrap())
        })
    }

    /// Waits until both ends are in these states; None: any state.
    pub fn until_states(&mut self, wanted: [Option<&str>; 2]) {
        let is_there =
            |(is, wanted): (&Option<String>, &Option<&str>)| wanted.is_none() || is.as_deref() == *wanted;
        while !self.states().iter().zip(&wanted).all(is_there) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that nothing is left of the guest and its disk, and then of the back.
    pub fn finish(self, back: Back) {
        self.0.end(back);
    }
}
