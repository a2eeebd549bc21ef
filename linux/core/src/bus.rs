//! The xenstore keys and states of a device, by the kernel's xenbus.

use crate::front::FAULT;
use crate::shim;
use alloc::string::String;
use core::fmt;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::key_source::{KeySource, Pairs};
use pregrant::{PlatformError, memory};

/// One end of a device, a front's or a back's.
pub struct KernelBus(pub shim::Device);

/// A key could not be read or written, or its value is wrong.
#[derive(Debug)]
pub enum BusError {
    Kernel { what: &'static str, code: i32 },
    Bad { key: String, expected: &'static str },
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { what, code } => write!(f, "cannot {what}: error {}", -code),
            Self::Bad { key, expected } => write!(f, "the peer's {key} is not {expected}"),
        }
    }
}

impl BusError {
    /// The error code that is reported in xenstore.
    pub fn code(&self) -> i32 {
        match self {
            Self::Kernel { code, .. } => *code,
            Self::Bad { .. } => FAULT,
        }
    }
}

const NOT_THERE: i32 = -2;
const TRY_AGAIN: i32 = -11;
/// The longest value that is read, and the longest list of names in a directory.
const LONGEST: usize = 4096;
/// Number of times a transaction is tried that conflicts with another.
const TRIES: u32 = 100;

fn done(what: &'static str, code: i32) -> Result<usize, BusError> {
    usize::try_from(code).map_err(|_| BusError::Kernel { what, code })
}

fn refused(why: PlatformError) -> BusError {
    BusError::Kernel { what: why.op, code: -why.code }
}

impl KernelBus {
    fn read(&self, own: bool, key: &str) -> Result<Option<String>, BusError> {
        let mut text = memory::list(0u8, LONGEST).map_err(refused)?.into_vec();
        // SAFETY: both ranges are as long as is said.
        let n =
            unsafe { shim::pk_key_read(self.0, own, key.as_ptr(), key.len(), text.as_mut_ptr(), text.len()) };
        if n == NOT_THERE {
            return Ok(None);
        }
        text.truncate(done("read a key", n)?);
        Ok(String::from_utf8(text).ok())
    }

    /// Tries a transaction once.
    fn try_publish(&self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), BusError> {
        let mut t = 0;
        // SAFETY: the device lives.
        done("begin a transaction", unsafe { shim::pk_transaction_begin(self.0, &mut t) })?;
        let written = self.write_all(t, pairs, stale);
        // SAFETY: of the transaction that was started.
        let ended = unsafe { shim::pk_transaction_end(self.0, t, written.is_err()) };
        written.and(done("end a transaction", ended).map(drop))
    }

    fn write_all(&self, t: u32, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), BusError> {
        let mut names = memory::list(0u8, LONGEST).map_err(refused)?;
        // SAFETY: the range is as long as is said.
        let n = unsafe { shim::pk_key_list(self.0, t, names.as_mut_ptr(), names.len()) };
        let names = names.get(..done("list keys", n)?).unwrap_or_default();
        let names = names.split(|b| *b == 0).filter_map(|n| core::str::from_utf8(n).ok());
        for old in names.filter(|old| !old.is_empty() && stale(old)) {
            if !pairs.iter().any(|(key, _)| key == old) {
                // SAFETY: a text of that length.
                done("remove a key", unsafe { shim::pk_key_remove(self.0, t, old.as_ptr(), old.len()) })?;
            }
        }
        for (key, value) in pairs {
            let (k, v) = (key.as_bytes(), value.as_bytes());
            // SAFETY: texts of those lengths.
            let n = unsafe { shim::pk_key_write(self.0, t, k.as_ptr(), k.len(), v.as_ptr(), v.len()) };
            done("write a key", n)?;
        }
        Ok(())
    }

    /// Writes to the device's error node in xenstore, and to the log, why this end does not
    /// continue.
    pub fn report_failure(&self, code: i32, text: &str) {
        // SAFETY: a text of that length. Where it cannot be written there is the log.
        let _ = unsafe { shim::pk_error_write(self.0, code, text.as_ptr(), text.len()) };
    }

    fn state(&self, own: bool) -> Result<XenbusState, BusError> {
        Ok(XenbusState::parse(self.read(own, "state")?.as_ref().map(|s| s.as_bytes())))
    }
}

impl KeySource for KernelBus {
    type Error = BusError;
    fn text(&mut self, key: &str) -> Result<Option<String>, BusError> {
        self.read(false, key)
    }
    fn bad(&self, key: &str, _: &str, expected: &'static str) -> BusError {
        // Without memory for it the error names no key.
        BusError::Bad { key: memory::text(key).unwrap_or_default(), expected }
    }
    fn refused(&self, why: PlatformError) -> BusError {
        refused(why)
    }
}

impl DeviceBus for KernelBus {
    fn peer_state(&mut self) -> Result<XenbusState, BusError> {
        self.state(false)
    }
    fn own_state(&mut self) -> Result<XenbusState, BusError> {
        self.state(true)
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, BusError> {
        self.read(true, key)
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), BusError> {
        let digit = state.digit().bytes().next().unwrap_or(b'0') - b'0';
        // SAFETY: the device lives.
        done("write the state", unsafe { shim::pk_state_write(self.0, digit.into()) }).map(drop)
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), BusError> {
        for _ in 1..TRIES {
            match self.try_publish(pairs, stale) {
                Err(BusError::Kernel { code: TRY_AGAIN, .. }) => {}
                ended => return ended,
            }
        }
        self.try_publish(pairs, stale)
    }
    fn online(&mut self) -> Result<bool, BusError> {
        // A key of backs, which a front's directory does not have.
        Ok(self.read(true, "online")?.is_none_or(|value| value == "1"))
    }
    fn report(&mut self, text: &str) -> Result<(), BusError> {
        // SAFETY: a text of that length. The kernel's log has it too.
        done("say why", unsafe { shim::pk_error_write(self.0, FAULT, text.as_ptr(), text.len()) }).map(drop)
    }
    fn reported(&mut self) -> Result<Option<String>, BusError> {
        Ok(None) // no one here asks what a predecessor said
    }
    fn recant(&mut self) -> Result<(), BusError> {
        // SAFETY: the device lives.
        match unsafe { shim::pk_error_remove(self.0) } {
            NOT_THERE => Ok(()),
            code => done("take an error back", code).map(drop),
        }
    }
}
