//! Addresses of this machine's network interfaces, queried by rtnetlink(7) in this thread's network
//! namespace, which `/sys` may not show.
//!
//! ```text
//!   request:  | length, GETLINK or GETADDR, flags, number, 0 | ifinfomsg or ifaddrmsg |
//!   answers:  | length, NEWLINK or NEWADDR, .., number, ..   | the same | attribute: length, type, value | ... |   DONE
//! ```
//! An answer that cannot be parsed is skipped: every length is checked against the buffer.

use pregrant::net::headers::MacAddr;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLM_F_ROOT | NLM_F_MATCH`, which requests all objects.
const DUMP: u16 = 0x300;

/// `struct nlmsghdr`.
const HEAD: usize = 16;
/// `struct ifinfomsg`.
const LINK_HEAD: usize = 16;
/// `struct ifaddrmsg`.
const ADDRESS_HEAD: usize = 8;

/// `IFF_UP`.
const UP: u32 = 1;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const ADDRESS_FLAGS: u16 = 8;
/// `IFA_F_DADFAILED | IFA_F_TENTATIVE`: addresses that are not usable, or not yet.
const NOT_OURS: u32 = 0x08 | 0x40;

/// Buffer size of one receive; the kernel's messages are at most 32 KiB.
const ROOM: usize = 32 << 10;

/// A network interface and its addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Netdev {
    pub name: String,
    /// True if the interface is administratively up.
    pub is_up: bool,
    pub mac: MacAddr,
    /// The index of the bridge of which the interface is a port.
    pub bridge: Option<u32>,
    /// The interface's usable IP addresses.
    pub ips: Vec<IpAddr>,
}

/// Iterates over the attributes of a message, by type.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[a, b, c, d] = bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        // The upper bits are the flags for nesting and byte order.
        Some((u16::from_ne_bytes([c, d]) & 0x3FFF, value))
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').into()
}

/// An rtnetlink socket, by which the kernel is asked.
struct Kernel(OwnedFd);

impl Kernel {
    fn new() -> io::Result<Self> {
        // `NETLINK_ROUTE` is protocol 0, which means None here.
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?))
    }

    /// Passes the type and content of each answer to `each`.
    fn ask(&self, what: u16, flags: u16, content: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut request = Vec::with_capacity(HEAD + content.len());
        request.extend_from_slice(&((HEAD + content.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&what.to_ne_bytes());
        request.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        request.extend_from_slice(&[0; 8]);
        request.extend_from_slice(content);
        rustix::net::send(&self.0, &request, SendFlags::empty())?;
        let mut answers = vec![0; ROOM];
        loop {
            let (len, _) = rustix::net::recv(&self.0, &mut answers[..], RecvFlags::empty())?;
            let mut left = &answers[..len];
            if left.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while let Some(len) = u32_at(left, 0) {
                let Some(message) = left.get(..len as usize).filter(|message| message.len() >= HEAD) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                match u16::from_ne_bytes([message[4], message[5]]) {
                    DONE => return Ok(()),
                    ERROR => {
                        let code = u32_at(message, HEAD).map_or(0, |code| code as i32);
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    kind => each(kind, &message[HEAD..]),
                }
                left = left.get(message.len().next_multiple_of(4)..).unwrap_or_default();
            }
            if flags & DUMP == 0 {
                return Ok(());
            }
        }
    }

    /// Passes the attributes of interface `index` to `each`. Returns whether it is up.
    fn link(&self, index: u32, mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
        let mut of = [0; LINK_HEAD];
        of[4..8].copy_from_slice(&index.to_ne_bytes());
        let mut is_up = false;
        self.ask(GET_LINK, 0, &of, |kind, answer| {
            if kind == NEW_LINK {
                is_up = u32_at(answer, 8).is_some_and(|flags| flags & UP != 0);
                let attributes = attributes(answer.get(LINK_HEAD..).unwrap_or_default());
                attributes.for_each(|(kind, value)| each(kind, value));
            }
        })?;
        Ok(is_up)
    }
}

/// Returns the usable address in `answer`, if the answer is about interface `index`.
fn address_of(index: u32, answer: &[u8]) -> Option<IpAddr> {
    if u32_at(answer, 4)? != index {
        return None;
    }
    let mut flags = u32::from(answer[2]);
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(answer.get(ADDRESS_HEAD..)?) {
        let ip = || match value.len() {
            4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        };
        match kind {
            // On a point-to-point link, `ADDRESS` is the other end's.
            LOCAL => local = ip(),
            ADDRESS => address = ip(),
            ADDRESS_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    local.or(address).filter(|_| flags & NOT_OURS == 0)
}

impl Netdev {
    /// Reads interface number `index`.
    ///
    /// # Errors
    ///
    /// There is no such interface, or the kernel does not answer.
    pub fn of(index: u32) -> io::Result<Self> {
        let kernel = Kernel::new()?;
        let (mut netdev, mut master) = (Self::default(), None);
        netdev.is_up = kernel.link(index, |kind, value| match kind {
            LINK_NAME => netdev.name = text(value),
            LINK_ADDRESS => netdev.mac = value.first_chunk().map(|mac| MacAddr(*mac)).unwrap_or_default(),
            LINK_MASTER => master = u32_at(value, 0),
            _ => {}
        })?;
        if let Some(master) = master {
            let mut is_bridge = false;
            kernel.link(master, |kind, value| {
                let mut of_kind = attributes(value).filter(|(kind, _)| *kind == INFO_KIND);
                is_bridge |= kind == LINK_INFO && of_kind.any(|(_, kind)| text(kind) == "bridge");
            })?;
            netdev.bridge = is_bridge.then_some(master);
        }
        kernel.ask(GET_ADDRESS, DUMP, &[0; ADDRESS_HEAD], |kind, answer| {
            if kind == NEW_ADDRESS {
                netdev.ips.extend(address_of(index, answer));
            }
        })?;
        Ok(netdev)
    }
}
