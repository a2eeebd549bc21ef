//! Which way bursts take to a tap and from it: without a system call, by vhost-net; with one for each, by io_uring; or with one for
//! each frame.

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
