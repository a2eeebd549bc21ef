//! A network interface of this machine: its MTU, state, address, bridge. By ioctl, for the few
//! things a vif needs.
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

/// An interface, by name.
#[derive(Debug)]
pub struct Interface {
    name: String,
    socket: Arc<OwnedFd>,
    /// Why it is not reached by its name: another one may have that.
    absent: Option<&'static str>,
}

/// `struct ifreq`: a name, and a union; each call reads or writes the union's start.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    value: [u8; 24],
}

/// A name as the kernel writes it.
pub(super) fn text(name: &[u8; 16]) -> String {
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

impl Interface {
    /// Of this name; whether there is one shows in the calls.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn new(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self { name: name.into(), socket: Arc::new(socket), absent: None })
    }

    /// The one with this number, by its name of now.
    ///
    /// # Errors
    /// There is none.
    pub fn numbered(index: u32) -> io::Result<Self> {
        let numbered = Self::new("")?;
        let mut request = IfReq { name: [0; 16], value: [0; 24] };
        request.value[..4].copy_from_slice(&index.to_ne_bytes());
        // SAFETY: SIOCGIFNAME reads and writes one ifreq, 40 bytes.
        unsafe { rustix::ioctl::ioctl(&*numbered.socket, Updater::<GET_NAME, IfReq>::new(&mut request)) }?;
        Ok(Self { name: text(&request.name), ..numbered })
    }

    /// Of this name, by the same socket. `absent` is why it is not to be reached by its name any
    /// more: then each call fails, with this reason.
    pub fn called(&self, name: &str, absent: Option<&'static str>) -> Self {
        Self { name: name.into(), socket: Arc::clone(&self.socket), absent }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes one call; `value` goes in and comes back.
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

    /// Its number.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn index(&self) -> io::Result<u32> {
        let [a, b, c, d, ..] = self.call::<GET_INDEX>("find it", &[])?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Bytes of a packet that it sends at most, Ethernet header not counted.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn mtu(&self) -> io::Result<u32> {
        let [a, b, c, d, ..] = self.call::<GET_MTU>("read its MTU", &[])?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Sets the bytes of a packet at most, Ethernet header not counted.
    ///
    /// # Errors
    /// The kernel refuses the value.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.call::<SET_MTU>("set its MTU", &mtu.to_ne_bytes()).map(drop)
    }

    /// Sets its hardware address.
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

    /// Whether it was taken up.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & UP != 0)
    }

    /// Whether what it receives goes on: through its bridge, if it is a port of one, else to the
    /// stack. After the link came up that takes the kernel a moment.
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

    /// Takes it up or down.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_up(&self, yes: bool) -> io::Result<()> {
        let flags = self.flags()?;
        let flags = if yes { flags | UP } else { flags & !UP };
        self.call::<SET_FLAGS>("take it up or down", &flags.to_ne_bytes()).map(drop)
    }

    /// Makes it a port of the bridge `bridge`; it may be one already.
    ///
    /// # Errors
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
