//! A backend's request to the hotplug service: one message of five lines.
//!
//! ```text
//!   pregrant hotplug 1
//!   what=online                                 or offline
//!   script=/etc/xen/scripts/vif-bridge
//!   vif=vif5.0
//!   dir=/local/domain/0/backend/vif/5/0
//! ```
//! Each line is there once, in this order, and ends with a newline; nothing stands before, between
//! or behind them. So there is one text for a request, and a value with a newline in it is a
//! request that is refused.
//!
//! A program that took over the backend's process can write these: [`Request::parse`] takes what is
//! of the right form and nothing else.

use std::fmt;

/// Largest size of a message in bytes.
pub const REQUEST_BYTES: usize = 512;

/// The first line of a message, with the version of the format.
const HEAD: &str = "pregrant hotplug 1";
/// Longest name of a network interface: `IFNAMSIZ` without the terminating NUL.
const NAME_BYTES: usize = 15;
/// Lowest domain id that no guest can have: `DOMID_FIRST_RESERVED`.
const RESERVED: u16 = 0x7ff0;

/// The action of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The script connects the interface to the network.
    Online,
    /// The script undoes what it did for `online`.
    Offline,
}

impl What {
    /// Returns the value as the script's first argument.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Offline => "offline",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request to the service to run a hotplug script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The script's first argument.
    pub what: What,
    /// Path of the script.
    pub script: String,
    /// Name of the interface.
    pub vif: String,
    /// The vif's directory in xenstore, at the backend's end.
    pub dir: String,
}

/// The reason why a message is not a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// The message does not consist of five lines with these prefixes, in order.
    #[error("malformed request")]
    Form,
    /// The script's argument is neither `online` nor `offline`.
    #[error("a script's argument is `online` or `offline`")]
    What,
    /// The script's path is not absolute, or contains other names than plain ones.
    #[error("a script is an absolute path of letters, digits and ._-, without a part that begins with a dot")]
    Script,
    /// The text is not a valid interface name.
    #[error("an interface's name has 1 to 15 letters, digits and ._-, and begins with a letter or a digit")]
    Vif,
    /// The directory is not of the form `/local/domain/N/backend/vif/N/N`.
    #[error("a vif's directory is /local/domain/N/backend/vif/N/N")]
    Dir,
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c)
}

fn is_script(path: &str) -> bool {
    let is_name =
        |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_plain);
    path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_name))
}

fn is_interface(name: &str) -> bool {
    name.len() <= NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
}

/// Parses a number that must be in canonical form.
fn number<N: std::str::FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|n: &N| n.to_string() == text)
}

fn is_vif_dir(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "local", "domain", back, "backend", "vif", front, handle] = parts[..] else { return false };
    let is_domain = |text| number::<u16>(text).is_some_and(|n| n < RESERVED);
    is_domain(back) && is_domain(front) && number::<u32>(handle).is_some()
}

impl Request {
    /// Encodes the request as a message.
    pub fn encode(&self) -> String {
        let Self { what, script, vif, dir } = self;
        format!("{HEAD}\nwhat={what}\nscript={script}\nvif={vif}\ndir={dir}\n")
    }

    /// Reads a message.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn parse(message: &[u8]) -> Result<Self, RequestError> {
        if message.len() > REQUEST_BYTES {
            return Err(RequestError::Form);
        }
        let text = std::str::from_utf8(message).map_err(|_| RequestError::Form)?;
        let lines: Vec<&str> = text.split('\n').collect();
        let [HEAD, what, script, vif, dir, ""] = lines[..] else { return Err(RequestError::Form) };
        let value = |line: &str, key: &str| -> Result<String, RequestError> {
            line.strip_prefix(key).map(String::from).ok_or(RequestError::Form)
        };
        let what = match value(what, "what=")?.as_str() {
            "online" => What::Online,
            "offline" => What::Offline,
            _ => return Err(RequestError::What),
        };
        let request = Self {
            what,
            script: value(script, "script=")?,
            vif: value(vif, "vif=")?,
            dir: value(dir, "dir=")?,
        };
        if !is_script(&request.script) {
            return Err(RequestError::Script);
        }
        if !is_interface(&request.vif) {
            return Err(RequestError::Vif);
        }
        if !is_vif_dir(&request.dir) {
            return Err(RequestError::Dir);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            what: What::Online,
            script: "/etc/xen/scripts/vif-bridge".into(),
            vif: "vif5.0".into(),
            dir: "/local/domain/0/backend/vif/5/0".into(),
        }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for what in [What::Online, What::Offline] {
            let request = Request { what, ..request() };
            let text = request.encode();
            assert_eq!(Request::parse(text.as_bytes()), Ok(request));
            assert_eq!(text.lines().nth(1), Some(format!("what={what}").as_str()));
        }
        let longest = Request { vif: "a23456789012345".into(), ..request() };
        assert_eq!(Request::parse(longest.encode().as_bytes()), Ok(longest));
    }

    /// If a byte of a message is missing, doubled or changed, the message is refused, or is the
    /// encoding of another valid request.
    #[test]
    fn a_message_that_is_changed_is_refused_or_says_what_it_does() {
        let text = request().encode().into_bytes();
        let mut taken = 0;
        let mut parse_one = |message: &[u8]| {
            if let Ok(request) = Request::parse(message) {
                assert_eq!(request.encode().as_bytes(), message);
                taken += 1;
            }
        };
        for at in 0..text.len() {
            parse_one(&text[..at]);
            parse_one(&[&text[..at], &text[at + 1..]].concat());
            parse_one(&[&text[..=at], &text[at..]].concat());
            for byte in 0..=255 {
                let mut changed = text.clone();
                changed[at] = byte;
                parse_one(&changed);
            }
        }
        assert!(taken > 0, "other names are requests too");
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        let good = request().encode();
        for bad in [
            String::new(),
            good.repeat(2),
            format!("\n{good}"),
            format!("{good}\n"),
            format!("{good}\0"),
            good.trim_end().to_string(),
            good.replace('\n', "\r\n"),
            good.replace("hotplug 1", "hotplug 2"),
            good.replace("vif=vif5.0\n", ""),
            good.replace("vif=vif5.0\n", "vif=vif5.0\nvif=vif6.0\n"),
            good.replace("vif=vif5.0", "vif=vif5.0\nPATH=/tmp"),
            good.replace("vif=", "VIF="),
            format!("{good}{}", "x".repeat(REQUEST_BYTES)),
        ] {
            assert_eq!(Request::parse(bad.as_bytes()), Err(RequestError::Form), "{bad:?}");
        }
        assert_eq!(Request::parse(b"\xff\xfe\n"), Err(RequestError::Form));
        let long = good.replace("vif-bridge", &"x".repeat(REQUEST_BYTES));
        assert_eq!(Request::parse(long.as_bytes()), Err(RequestError::Form));
    }

    #[test]
    fn values_that_are_not_what_they_stand_for_are_refused() {
        let good = request().encode();
        let with = |from: &str, to: &str| Request::parse(good.replace(from, to).as_bytes());
        for what in ["", "Online", "add", "online offline", "online;reboot"] {
            assert_eq!(with("online", what), Err(RequestError::What), "{what:?}");
        }
        for script in [
            "",
            "vif-bridge",
            "/etc/xen/scripts/../../../bin/sh",
            "/etc/xen/scripts/./vif-bridge",
            "/etc/xen/scripts//vif-bridge",
            "/etc/xen/scripts/.hidden",
            "/etc/xen/scripts/",
            "/etc/xen/scripts/-c",
            "/etc/xen/scripts/a b",
            "/etc/xen/scripts/$(reboot)",
            "/etc/xen/scripts/ä",
        ] {
            let refused = Err(RequestError::Script);
            assert_eq!(with("/etc/xen/scripts/vif-bridge", script), refused, "{script:?}");
        }
        for vif in ["", ".", "..", "-a", "a/b", "a b", "vif5.0:1", "a234567890123456", "vif%d", "`reboot`"] {
            let refused = Err(RequestError::Vif);
            assert_eq!(with("vif=vif5.0", &format!("vif={vif}")), refused, "{vif:?}");
        }
        for dir in [
            "",
            "backend/vif/5/0",
            "/local/domain/0/backend/vif/5",
            "/local/domain/0/backend/vif/5/0/",
            "/local/domain/0/backend/vbd/5/0",
            "/local/domain/0/backend/vif/05/0",
            "/local/domain/0/backend/vif/+5/0",
            "/local/domain/0/backend/vif/32752/0",
            "/local/domain/65536/backend/vif/5/0",
            "/local/domain/0/backend/vif/5/4294967296",
            "/local/domain/0/backend/vif/5/-1",
            "/local/domain/0/backend/vif/5/../6/0",
            "/tool",
        ] {
            let refused = Err(RequestError::Dir);
            assert_eq!(with("/local/domain/0/backend/vif/5/0", dir), refused, "{dir:?}");
        }
    }
}
