using System;
using System.Runtime.InteropServices;
using Mono.Data.Sqlite;

/// <summary>
/// C# with Mono.Data.Sqlite, which uses the shared libsqlite3: registers Hardpack with it.
///
///   mcs -r:System.Data -r:Mono.Data.Sqlite -out:words.exe examples/csharp/Words.cs
///   mono words.exe LIBRARY POOL
///
/// Look out: this driver cannot load extensions, so the program calls hardpack_register_with() of hardpack.h, before it
/// opens a pool. It must find the functions of the same SQLite that the driver has: libsqlite3.so.0. A connection string
/// cannot hold the "=" of "?vfs=hardpack", so Hardpack becomes the default VFS. Then new databases become pools, too.
/// </summary>
public static class Words
{
    const int RTLD_NOW = 2;
    const uint HARDPACK_REGISTER_DEFAULT = 1;

    [DllImport("libdl.so.2")]
    static extern IntPtr dlopen(string name, int flags);

    [DllImport("libdl.so.2")]
    static extern IntPtr dlsym(IntPtr library, string name);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate int RegisterWith(IntPtr find, IntPtr context, uint flags);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate IntPtr Error();

    static IntPtr Open(string name)
    {
        IntPtr library = dlopen(name, RTLD_NOW);
        if (library == IntPtr.Zero) throw new DllNotFoundException(name);
        return library;
    }

    static T Function<T>(IntPtr library, string name)
    {
        return Marshal.GetDelegateForFunctionPointer<T>(dlsym(library, name));
    }

    static void Register(string path)
    {
        IntPtr hardpack = Open(path);
        // dlsym() itself finds the functions, in the library that is its first argument.
        IntPtr find = dlsym(Open("libdl.so.2"), "dlsym");
        IntPtr sqlite = Open("libsqlite3.so.0");
        RegisterWith register = Function<RegisterWith>(hardpack, "hardpack_register_with");
        if (register(find, sqlite, HARDPACK_REGISTER_DEFAULT) != 0)
        {
            IntPtr reason = Function<Error>(hardpack, "hardpack_error")();
            throw new InvalidOperationException(Marshal.PtrToStringAnsi(reason));
        }
    }

    public static int Main(string[] arguments)
    {
        if (arguments.Length != 2)
        {
            Console.Error.WriteLine("usage: words LIBRARY POOL");
            return 2;
        }
        Register(arguments[0]);
        using (var db = new SqliteConnection("Data Source=" + arguments[1]))
        {
            db.Open();
            using (var command = db.CreateCommand())
            {
                command.CommandText = "INSERT INTO words VALUES('c#', 1)";
                command.ExecuteNonQuery();
                command.CommandText = "SELECT count(*) FROM words";
                Console.WriteLine("{0} words", command.ExecuteScalar());
            }
        }
        return 0;
    }
}
