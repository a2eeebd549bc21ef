//! A machine with a guest, a driver domain and a store, and the keys that libxl writes into it.

use pregrant::DomId;
use pregrant::PlatformError;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::device::DeviceId;
use pregrant::xenbus::key_source::{KeySource, Pairs};
use pregrant::xenbus::{Class, Device, DeviceError, Side, XenbusState};
use pregrant::xenstore::{Access, Client, Permission};
use pregrant_xenstored::{LocalLink, LocalStore};

pub const GUEST: DomId = DomId(5);
pub const HOST: DomId = DomId(1);

pub type Keys = &'static [(&'static str, &'static str)];

/// libxl's keys of a vif, tools/libs/light/libxl_nic.c.
pub const VIF: Made = Made {
    class: Class::VIF,
    handle: 0,
    front: "/local/domain/5/device/vif/0",
    back: "/local/domain/1/backend/vif/5/0",
    front_keys: &[
        ("backend", "/local/domain/1/backend/vif/5/0"),
        ("backend-id", "1"),
        ("state", "1"),
        ("handle", "0"),
        ("mac", "00:16:3e:00:00:01"),
        ("mtu", "1500"),
        ("trusted", "1"),
    ],
    back_keys: &[
        ("frontend", "/local/domain/5/device/vif/0"),
        ("frontend-id", "5"),
        ("online", "1"),
        ("state", "1"),
        ("script", "/etc/xen/scripts/vif-bridge"),
        ("mac", "00:16:3e:00:00:01"),
        ("bridge", "xenbr0"),
        ("handle", "0"),
        ("type", "vif"),
        ("hotplug-status", ""),
    ],
};

/// libxl's keys of a disk, tools/libs/light/libxl_disk.c.
pub const VBD: Made = Made {
    class: Class::VBD,
    handle: 51712,
    front: "/local/domain/5/device/vbd/51712",
    back: "/local/domain/1/backend/vbd/5/51712",
    front_keys: &[
        ("backend", "/local/domain/1/backend/vbd/5/51712"),
        ("backend-id", "1"),
        ("state", "1"),
        ("virtual-device", "51712"),
        ("device-type", "disk"),
        ("trusted", "1"),
    ],
    back_keys: &[
        ("frontend", "/local/domain/5/device/vbd/51712"),
        ("params", "/dev/vg/guest"),
        ("script", "/etc/xen/scripts/block"),
        ("frontend-id", "5"),
        ("online", "1"),
        ("removable", "0"),
        ("bootable", "1"),
        ("state", "1"),
        ("dev", "xvda"),
        ("type", "phy"),
        ("mode", "w"),
        ("device-type", "disk"),
        ("discard-enable", "1"),
        ("specification", "xen"),
        ("physical-device", "fd:3"),
        ("physical-device-path", "/dev/dm-3"),
        ("hotplug-status", "connected"),
    ],
};

/// A device as the toolstack makes it.
pub struct Made {
    pub class: Class,
    pub handle: u32,
    pub front: &'static str,
    pub back: &'static str,
    pub front_keys: Keys,
    pub back_keys: Keys,
}

pub struct Machine {
    pub xen: LocalXen,
    pub guest: LocalDomain,
    pub host: LocalDomain,
    ours: Device,
    /// The connection of the domain that has it.
    own: Client<LocalLink>,
    /// The other system's directory, ours, and that system's connection.
    their_dir: &'static str,
    our_dir: &'static str,
    their: Client<LocalLink>,
    toolstack: Client<LocalLink>,
    /// States that our end wrote since the script last checked.
    states: Vec<XenbusState>,
    /// The server's clients end with it.
    _store: LocalStore,
}

impl Machine {
    /// The toolstack has made the device; `side` is ours.
    pub fn new(made: &Made, side: Side) -> Self {
        let store = LocalStore::new();
        store.with_server(|s| [GUEST, HOST].map(|domid| s.introduce(domid).unwrap()));
        let mut toolstack = store.client(DomId(0));
        let (front, back) =
            ((made.front, made.front_keys, GUEST, HOST), (made.back, made.back_keys, HOST, GUEST));
        for (dir, keys, owner, reader) in [front, back] {
            let perms = [Permission::new(Access::None, owner), Permission::new(Access::Read, reader)];
            toolstack.mkdir(dir).unwrap();
            toolstack.set_perms(dir, &perms).unwrap();
            for (key, value) in keys {
                toolstack.write(&format!("{dir}/{key}"), value).unwrap();
            }
        }
        let xen = LocalXen::new();
        let id = DeviceId { class: made.class, front: GUEST, back: HOST, handle: made.handle };
        let ((own, our_dir), (their, their_dir)) = match side {
            Side::Front => ((GUEST, made.front), (HOST, made.back)),
            Side::Back => ((HOST, made.back), (GUEST, made.front)),
        };
        Self {
            guest: xen.domain(GUEST.0),
            host: xen.domain(HOST.0),
            xen,
            ours: Device::new(id, side),
            own: store.client(own),
            their_dir,
            our_dir,
            their: store.client(their),
            toolstack,
            states: Vec::new(),
            _store: store,
        }
    }

    /// Our end's way to the store.
    pub fn bus(&mut self) -> Bus<'_> {
        let Self { ours, own, states, .. } = self;
        Bus { store: StoreBus { device: ours, xs: own }, states }
    }

    /// The other system writes each key by itself, in this order.
    pub fn write(&mut self, keys: &[(String, String)]) {
        for (key, value) in keys {
            self.their.write(&format!("{}/{key}", self.their_dir), value).unwrap();
        }
    }

    /// The other system writes all of them in one transaction.
    pub fn commit(&mut self, keys: &[(String, String)]) {
        let dir = self.their_dir;
        let write = |(key, value): &(String, String)| (format!("{dir}/{key}"), value.clone());
        let keys: Vec<_> = keys.iter().map(write).collect();
        self.their.transaction(|t| keys.iter().try_for_each(|(key, value)| t.write(key, value))).unwrap();
    }

    /// The other system removes a key of its own; a missing one is no error.
    pub fn remove(&mut self, key: &str) {
        self.their.rm(&format!("{}/{key}", self.their_dir)).unwrap();
    }

    /// Domain 0 writes into the back's directory, whichever end is ours.
    pub fn toolstack_writes(&mut self, back: &str, key: &str, value: &str) {
        self.toolstack.write(&format!("{back}/{key}"), value).unwrap();
    }

    /// A key of our end, as the other system reads it.
    pub fn read(&mut self, key: &str) -> Option<String> {
        let value = self.their.read_if_there(&format!("{}/{key}", self.our_dir)).unwrap();
        value.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// States that our end wrote since the last call.
    pub fn take_states(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.states).into_iter().map(|state| state as u8).collect()
    }

    /// Checks that nothing is granted, mapped or bound.
    pub fn assert_empty(&self) {
        let c = self.xen.counts();
        assert_eq!((c.grants, c.mapped, c.channels), (0, 0, 0), "grants, mappings, channel ends left behind");
        assert_eq!(c.maps, c.unmaps);
    }
}

/// Our end's bus, which remembers what states it wrote.
pub struct Bus<'a> {
    store: StoreBus<'a, LocalLink>,
    states: &'a mut Vec<XenbusState>,
}

impl KeySource for Bus<'_> {
    type Error = DeviceError;
    fn text(&mut self, key: &str) -> Result<Option<String>, DeviceError> {
        self.store.text(key)
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> DeviceError {
        self.store.bad(key, value, expected)
    }
    fn refused(&self, why: PlatformError) -> DeviceError {
        self.store.refused(why)
    }
}

impl DeviceBus for Bus<'_> {
    fn peer_state(&mut self) -> Result<XenbusState, DeviceError> {
        self.store.peer_state()
    }
    fn own_state(&mut self) -> Result<XenbusState, DeviceError> {
        self.store.own_state()
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, DeviceError> {
        self.store.own_text(key)
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), DeviceError> {
        self.states.push(state);
        self.store.set_state(state)
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), DeviceError> {
        self.store.publish(pairs, stale)
    }
    fn online(&mut self) -> Result<bool, DeviceError> {
        self.store.online()
    }
    fn report(&mut self, text: &str) -> Result<(), DeviceError> {
        self.store.report(text)
    }
    fn reported(&mut self) -> Result<Option<String>, DeviceError> {
        self.store.reported()
    }
    fn recant(&mut self) -> Result<(), DeviceError> {
        self.store.recant()
    }
}
