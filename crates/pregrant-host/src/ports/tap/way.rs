//! Which way bursts take to a tap and from it: by vhost-net without a system call, by io_uring with
//! one for each burst, or with one for each frame.

use std::fmt;

/// Which way bursts take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TapWay {
    /// The one that is cheapest on this machine.
    #[default]
    Cheaper,
    /// No system call, by vhost-net; where there is none, as for `Cheaper`.
    Vhost,
    /// A system call for each burst, by io_uring; where there is none, as for `Frame`.
    Burst,
    /// A system call for each frame.
    Frame,
}

impl TapWay {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cheaper, Self::Vhost, Self::Burst, Self::Frame];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cheaper => "cheaper",
            Self::Vhost => "vhost",
            Self::Burst => "burst",
            Self::Frame => "frame",
        }
    }
}

impl fmt::Display for TapWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
