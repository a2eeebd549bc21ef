//! Frame ports: what can be on the remote side of a netback's queue.
//!
//! | file | takes what the guest sends | has frames for the guest |
//! |---|---|---|
//! | [`switch`] | forwards it to other guests by MAC address | what others sent to it |
//! | [`generator`] | drops it | numbered frames, as fast as they are asked for |
//! | [`checking_sink`] | checks the numbers, counts losses | none |
//! | [`tap`] | gives it to a network interface of this machine | what that interface sends |
//! | [`steering`] | gives it to the port that it wraps | what that port has, in the queues that the guest chose |
//! | [`pcap`] | passes it on, and writes it to a file | what the port that it wraps has, and writes it to a file |
//!
//! [`sequence`] is the numbered frame that generator, sink and a measuring front share;
//! [`frame_queue`] the bounded queue of frames under the switch, [`segments`] a large segment cut
//! for it, [`netdev_ioctl`] what is set on the tap's interface, [`port_readiness`] what wakes a
//! worker that waits for taps.
//! Ports know the frame-port trait of the core and nothing of rings, grants or xenstore. What
//! reaches them are private copies, or, if a port asks for it, payload in the guest's pages
//! ([`Payload`](pregrant::port::Payload)); the bytes are still a guest's choice, so every port
//! takes any frame without a panic and in bounded memory.

pub mod announcement;
pub mod checking_sink;
pub mod frame_queue;
pub mod generator;
mod mac_table;
pub mod mtu_limit;
pub mod netdev_addresses;
pub mod netdev_ioctl;
pub mod pcap;
pub mod port_readiness;
pub mod segments;
pub mod sequence;
pub mod steering;
pub mod switch;
pub mod tap;
