//! Lines for the kernel's log. Each names its device; the self-test has no device.

use crate::shim;
use core::fmt::{self, Write};

/// One line, truncated to 200 bytes.
pub struct Line {
    text: [u8; 200],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { text: [0; 200], len: 0 }
    }
}

/// A warning: KERN_WARNING.
pub fn warn(device: shim::Device, args: fmt::Arguments<'_>) {
    say(device, 4, args);
}

/// Information for an administrator: KERN_INFO.
pub fn info(device: shim::Device, args: fmt::Arguments<'_>) {
    say(device, 6, args);
}

/// Logs that the back broke the protocol.
pub fn fault(device: shim::Device, fault: &dyn fmt::Display) {
    let mut line = Line::default();
    let _ = write!(line, "{fault}");
    // SAFETY: the line's bytes; the device lives.
    unsafe { shim::pk_fault(device, line.text.as_ptr(), line.len) }
}

#[inline(never)]
fn say(device: shim::Device, level: u32, args: fmt::Arguments<'_>) {
    let mut line = Line::default();
    let _ = line.write_fmt(args);
    // SAFETY: the line's bytes; the device lives, or is null.
    unsafe { shim::pk_log(device, level, line.text.as_ptr(), line.len) }
}

impl Line {
    pub fn text(&self) -> &str {
        let text = self.text.get(..self.len).unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }

    /// Ends the kernel (`BUG`), with this line in its log.
    pub fn end_all(&self) -> ! {
        // SAFETY: the line's bytes.
        unsafe { shim::pk_panic(self.text.as_ptr(), self.len) };
        // SAFETY: never reached. objtool does not know that `pk_panic` does not return.
        unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for (to, from) in self.text.iter_mut().skip(self.len).zip(s.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}
