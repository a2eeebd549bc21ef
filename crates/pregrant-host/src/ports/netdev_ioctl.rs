//! The MTU, state, address and bridge of a network interface of this machine, by the ioctls that a
//! vif needs.
#![expect(unsafe_code, reason = "ioctls on a network interface")]

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::sync::Arc;

/// `SIOCGIFNAME`.
const GET_NAME: Opcode = 0x8910;
/// `SIOCGIFFLAGS`.
const GET_FLAGS: Opcode = 0x8913;
/// `SIOCSIFFLAGS`.
const SET_FLAGS: Opcode = 0x8914;
/// `SIOCGIFMTU`.
const GET_MTU: Opcode = 0x8921;
/// `SIOCSIFMTU`.
const SET_MTU: Opcode = 0x8922;
/// `SIOCSIFHWADDR`.
const SET_ADDRESS: Opcode = 0x8924;
/// `SIOCGIFINDEX`.
const GET_INDEX: Opcode = 0x8933;
/// `SIOCBRADDIF`.
const BRIDGE_ADD: Opcode = 0x89A2;

/// `IFF_UP`.
const UP: i16 = 1;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

/// A network interface, by its name.
#[derive(Debug)]
pub struct Interface {
    name: String,
    socket: Arc<OwnedFd>,
    /// The reason why the interface's name must not be used: another interface may have it now.
    absent: Option<&'static str>,
}

/// `struct ifreq`: a name and a union, of which each call uses the first bytes.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    value: [u8; 24],
}

/// Decodes a name that the kernel wrote.
pub(super) fn text(name: &[u8; 16]) -> String {
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

impl Interface {
    /// Names an interface. Only the calls show whether it exists.
    ///
    /// # Errors
    ///
    /// The socket cannot be created.
    pub fn new(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self { name: name.into(), socket: Arc::new(socket), absent: None })
    }

    /// Finds the current name of the interface with this index.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn numbered(index: u32) -> io::Result<Self> {
        let numbered = Self::new("")?;
        let mut request = IfReq { name: [0; 16], value: [0; 24] };
        request.value[..4].copy_from_slice(&index.to_ne_bytes());
        // SAFETY: SIOCGIFNAME reads and writes one ifreq, 40 bytes.
        unsafe { rustix::ioctl::ioctl(&*numbered.socket, Updater::<GET_NAME, IfReq>::new(&mut request)) }?;
        Ok(Self { name: text(&request.name), ..numbered })
    }

    /// Returns another interface that uses the same socket. `absent` is the error of each call if
    /// the name must not be used any more.
    pub fn called(&self, name: &str, absent: Option<&'static str>) -> Self {
        Self { name: name.into(), socket: Arc::clone(&self.socket), absent }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes one ioctl call. `value` is written to the union, and the union is returned.
    fn call<const OPCODE: Opcode>(&self, what: &str, value: &[u8]) -> io::Result<[u8; 24]> {
        if let Some(why) = self.absent {
            let text = format!("network interface {}: cannot {what}: {why}", self.name);
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let mut request = IfReq { name: [0; 16], value: [0; 24] };
        let name = self.name.as_bytes();
        let fits = name.len() < 16 && value.len() <= 24;
        let result = if fits {
            request.name[..name.len()].copy_from_slice(name);
            request.value[..value.len()].copy_from_slice(value);
            // SAFETY: each opcode above reads and writes one ifreq, 40 bytes.
            unsafe { rustix::ioctl::ioctl(&*self.socket, Updater::<OPCODE, IfReq>::new(&mut request)) }
        } else {
            Err(Errno::NAMETOOLONG)
        };
        result.map(|()| request.value).map_err(|e| {
            let remedy = match e {
                Errno::NODEV => "; there is no such interface",
                Errno::PERM | Errno::ACCESS => "; run as root, or with CAP_NET_ADMIN",
                Errno::BUSY => "; another bridge has it, take it out there first",
                _ => "",
            };
            let text = format!("network interface {}: cannot {what}: {e}{remedy}", self.name);
            io::Error::new(io::Error::from(e).kind(), text)
        })
    }

    /// Returns the interface's index.
    ///
    /// # Errors
    ///
    /// There is no such interface.
    pub fn index(&self) -> io::Result<u32> {
        let [a, b, c, d, ..] = self.call::<GET_INDEX>("find it", &[])?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Returns the MTU in bytes, which excludes the Ethernet header.
    ///
    /// # Errors
    ///
    /// There is no such interface.
    pub fn mtu(&self) -> io::Result<u32> {
        let [a, b, c, d, ..] = self.call::<GET_MTU>("read its MTU", &[])?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Sets the MTU in bytes, which excludes the Ethernet header.
    ///
    /// # Errors
    ///
    /// The kernel refuses the value.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.call::<SET_MTU>("set its MTU", &mtu.to_ne_bytes()).map(drop)
    }

    /// Sets the interface's hardware address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_address(&self, mac: [u8; 6]) -> io::Result<()> {
        let mut value = [0; 8];
        value[..2].copy_from_slice(&ETHERNET.to_ne_bytes());
        value[2..].copy_from_slice(&mac);
        self.call::<SET_ADDRESS>("set its address", &value).map(drop)
    }

    fn flags(&self) -> io::Result<i16> {
        let [low, high, ..] = self.call::<GET_FLAGS>("read its flags", &[])?;
        Ok(i16::from_ne_bytes([low, high]))
    }

    /// True if the interface is administratively up.
    ///
    /// # Errors
    ///
    /// There is no such interface.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & UP != 0)
    }

    /// Returns true if frames that the interface receives are forwarded: through its bridge if it
    /// is a port of one, and otherwise to the stack. After the link comes up the kernel needs a
    /// moment until then.
    pub fn forwards(&self) -> bool {
        if self.absent.is_some() {
            return false;
        }
        let read = |file: &str| std::fs::read_to_string(format!("/sys/class/net/{}/{file}", self.name));
        match read("brport/state") {
            Ok(state) => state.trim() == "3",
            Err(_) => read("operstate").is_ok_and(|state| matches!(state.trim(), "up" | "unknown")),
        }
    }

    /// Sets the interface administratively up or down.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_up(&self, yes: bool) -> io::Result<()> {
        let flags = self.flags()?;
        let flags = if yes { flags | UP } else { flags & !UP };
        self.call::<SET_FLAGS>("take it up or down", &flags.to_ne_bytes()).map(drop)
    }

    /// Adds the interface to the bridge `bridge`, unless it is a port of that already.
    ///
    /// # Errors
    ///
    /// There is no such bridge, or the interface is a port of another.
    pub fn join(&self, bridge: &str) -> io::Result<()> {
        let index = self.index()?;
        let already = format!("/sys/class/net/{bridge}/brif/{}", self.name);
        if std::path::Path::new(&already).exists() {
            return Ok(());
        }
        let what = format!("add {} to it", self.name);
        Self::new(bridge)?.call::<BRIDGE_ADD>(&what, &index.to_ne_bytes()).map(drop)
    }
}
