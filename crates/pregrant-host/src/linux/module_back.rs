//! The kernel's module `pregrant_back` (linux/back), which serves vifs in place of xen-netback:
//! what sysfs has of it.
//!
//! ```text
//!   /sys/module/pregrant_back/version, parameters/*              the module
//!   /sys/bus/xen-backend/drivers/pregrant_back/vif-5-0           a vif that it has:
//!      state                                                     the back's xenbus state
//!      net/NAME                                                  its interface
//!      pregrant/vif, pregrant/queue0 ...                         its counters, by `linux/back/sysfs.c`
//! ```
//! A file that is not there, as of an older module or of a vif that goes just now, is a figure that
//! is not known.
//!
//! What a guest may do: nothing, it is not involved.

use super::kernel_back::{self, device_of};
use pregrant::xenbus::Class;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The module's name, which is that of its driver.
pub const NAME: &str = kernel_back::MODULE;

/// Counters, by name.
pub type Counters = BTreeMap<String, u64>;

/// The module, in sysfs.
#[derive(Clone, Debug)]
pub struct ModuleBack {
    sysfs: PathBuf,
}

/// A vif that the module has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleVif {
    /// Domain id of the guest.
    pub front: u16,
    /// The number that the guest's vif has.
    pub handle: u32,
    /// The back's xenbus state, by name; empty: it is not known.
    pub state: String,
    /// The name of the interface, unless it is in another network namespace.
    pub interface: Option<String>,
    /// The vif's counters, and the module's; empty: they are not known.
    pub counters: Counters,
    /// The counters of each queue.
    pub queues: Vec<Counters>,
}

impl ModuleBack {
    /// Returns the module of this machine.
    pub fn here() -> Self {
        Self::at("/sys")
    }

    /// Returns the module in another directory than `/sys`, for tests.
    pub fn at(sysfs: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into() }
    }

    fn module(&self) -> PathBuf {
        self.sysfs.join("module").join(NAME)
    }

    /// Returns true if the module is loaded.
    pub fn is_loaded(&self) -> bool {
        self.module().exists()
    }

    /// Returns the version of the package that the module is from. None: it is from none.
    pub fn version(&self) -> Option<String> {
        line(&self.module().join("version"))
    }

    /// Returns the module's parameters, by name.
    pub fn parameters(&self) -> BTreeMap<String, String> {
        let dir = self.module().join("parameters");
        names(&dir)
            .filter_map(|name| Some((line(&dir.join(&name))?, name)))
            .map(|(value, name)| (name, value))
            .collect()
    }

    /// Returns the vifs that the module has, by guest and number.
    pub fn vifs(&self) -> Vec<ModuleVif> {
        let driver = self.sysfs.join("bus/xen-backend/drivers").join(NAME);
        let vif = |name: String| match device_of(&name)? {
            (Class::VIF, front, handle) => Some(vif(&driver.join(name), front, handle)),
            _ => None,
        };
        let mut vifs: Vec<_> = names(&driver).filter_map(vif).collect();
        vifs.sort_unstable_by_key(|vif| (vif.front, vif.handle));
        vifs
    }
}

fn vif(dir: &Path, front: u16, handle: u32) -> ModuleVif {
    let counters = counters(&dir.join("pregrant/vif")).unwrap_or_default();
    // There is a file for each queue that there may be.
    let queues = counters.get("queues").copied().unwrap_or_default();
    let of_queue = |k| self::counters(&dir.join(format!("pregrant/queue{k}")));
    ModuleVif {
        front,
        handle,
        state: line(&dir.join("state")).unwrap_or_default(),
        interface: names(&dir.join("net")).next(),
        queues: (0..queues).map_while(of_queue).collect(),
        counters,
    }
}

/// Returns the names in a directory; there are none in one that does not exist.
fn names(dir: &Path) -> impl Iterator<Item = String> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok())
}

fn line(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_string())
}

/// Reads lines of a name and a number.
fn counters(file: &Path) -> Option<Counters> {
    let text = fs::read_to_string(file).ok()?;
    let counter = |line: &str| {
        let (name, n) = line.split_once(' ')?;
        Some((name.to_string(), n.parse().ok()?))
    };
    Some(text.lines().filter_map(counter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that imitates sysfs, for tests.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(test: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("pregrant-module-{}-{test}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_module_that_is_not_loaded_has_nothing() {
        let sysfs = Sysfs::new("none", &[("bus/xen-backend/drivers/vif/vif-6-0/state", "Connected\n")]);
        let module = ModuleBack::at(&sysfs.0);
        assert!(!module.is_loaded() && module.vifs().is_empty() && module.parameters().is_empty());
        assert_eq!(module.version(), None);
    }

    #[test]
    fn its_vifs_have_their_files() {
        let of = |file: &str| format!("bus/xen-backend/drivers/pregrant_back/{file}");
        let files = [
            ("module/pregrant_back/version".to_string(), "0.1.0\n"),
            ("module/pregrant_back/parameters/queues".into(), "2\n"),
            (of("bind"), ""),
            (of("vif-12-1/state"), "InitWait\n"),
            (of("vif-5-0/state"), "Connected\n"),
            (of("vif-5-0/net/web/carrier"), "1\n"),
            (of("vif-5-0/pregrant/vif"), "domain 0\nlink 1\nqueues 2\nconnects 1\nmaps_lost 0\nodd\n"),
            (of("vif-5-0/pregrant/queue0"), "tx_frames 7\nrx_frames 18446744073709551615\n"),
            (of("vif-5-0/pregrant/queue1"), "tx_frames 8\n"),
            (of("vif-5-0/pregrant/queue2"), "tx_frames 0\n"),
        ];
        let sysfs = Sysfs::new("vifs", &files.each_ref().map(|(file, text)| (file.as_str(), *text)));
        let module = ModuleBack::at(&sysfs.0);
        assert!(module.is_loaded());
        assert_eq!(module.version().as_deref(), Some("0.1.0"));
        assert_eq!(module.parameters(), [("queues".to_string(), "2".to_string())].into());
        let [five, twelve] = &module.vifs()[..] else { panic!("{:?}", module.vifs()) };
        assert_eq!((five.front, five.handle, five.interface.as_deref()), (5, 0, Some("web")));
        assert_eq!((five.counters.len(), five.counters["connects"]), (5, 1));
        assert_eq!(five.queues.len(), 2, "the third is not connected");
        assert_eq!(five.queues[0]["rx_frames"], u64::MAX);
        let waits = ModuleVif { front: 12, handle: 1, state: "InitWait".into(), ..ModuleVif::default() };
        assert_eq!(*twelve, waits, "of an older module");
    }
}
