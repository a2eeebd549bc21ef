//! Macros for enums that have a name, or a number on the wire, per value. As both are in one table,
//! value and name cannot diverge.

/// Defines an enum whose values have one name each.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $of:ident { $($(#[$each:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$about])*
        pub enum $of { $($(#[$each])* $value,)* }

        impl $of {
            /// All values.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// The name of the value.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)* }
            }
        }

        impl ::core::fmt::Display for $of {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Parses such an enum's values from their names; `$error` is the error for an unknown one.
#[doc(hidden)]
#[macro_export]
macro_rules! read_by_name {
    ($of:ident, $error:ident) => {
        impl ::core::str::FromStr for $of {
            type Err = $error;
            fn from_str(text: &str) -> Result<Self, $error> {
                Self::ALL.into_iter().find(|value| value.name() == text).ok_or($error)
            }
        }
    };
}

/// Defines an enum whose values have one number each.
#[doc(hidden)]
#[macro_export]
macro_rules! numbered {
    ($(#[$about:meta])* $of:ident: $raw:ident { $($(#[$each:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr($raw)]
        pub enum $of { $($(#[$each])* $value = $number,)* }

        impl $of {
            /// All values, in this order.
            #[allow(dead_code)] // not each enum has a use for it
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$value),*];

            /// Decodes a number. `None`: it is unknown.
            pub const fn from_raw(raw: $raw) -> Option<Self> {
                match raw { $($number => Some(Self::$value),)* _ => None }
            }

            /// The number of the value.
            pub const fn raw(self) -> $raw {
                self as $raw
            }
        }
    };
}
